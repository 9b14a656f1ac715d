#include "hopmix/nn/registry.h"

#include "hopmix/base/memory_size.h"
#include "hopmix/base/nearest.h"
#include "hopmix/nn/mixers/block_chacal.h"
#include "hopmix/nn/mixers/chacal.h"
#include "hopmix/nn/mixers/chimera.h"
#include "hopmix/nn/mixers/deltanet.h"
#include "hopmix/nn/mixers/diagonal_ssm.h"
#include "hopmix/nn/mixers/full_attention.h"
#include "hopmix/nn/mixers/gated_linear_recurrence.h"
#include "hopmix/nn/mixers/gla.h"
#include "hopmix/nn/mixers/glr.h"
#include "hopmix/nn/mixers/griffin.h"
#include "hopmix/nn/mixers/kda.h"
#include "hopmix/nn/mixers/linear_attention.h"
#include "hopmix/nn/mixers/log_linear.h"
#include "hopmix/nn/mixers/mamba.h"
#include "hopmix/nn/mixers/mamba2.h"
#include "hopmix/nn/mixers/mura.h"
#include "hopmix/nn/mixers/parallel.h"
#include "hopmix/nn/mixers/retrieved_recurrence.h"
#include "hopmix/nn/mixers/sliding_window_recurrence.h"
#include "hopmix/nn/mixers/sparse_attention.h"

namespace hopmix::nn {

const std::vector<MixerEntry>& mixers() {
  static const std::vector<MixerEntry> entries = {
      full_attention_entry(),
      local_attention_entry(),
      sparse_attention_entry(),
      glr_entry(),
      chacal_entry(),
      block_chacal_entry(),
      gated_linear_recurrence_entry(),
      sliding_window_recurrence_entry(),
      diagonal_ssm_entry(),
      griffin_entry(),
      mamba_entry(),
      mamba2_entry(),
      linear_attention_entry(),
      gla_entry(),
      deltanet_entry(),
      gated_deltanet_entry(),
      kda_entry(),
      mura_entry(),
      topk_access_entry(),
      hysparse_entry(),
      retrieved_recurrence_entry(),
      log_linear_mamba2_entry(),
      log_linear_gated_deltanet_entry(),
      chimera_entry(),
      parallel_entry(),
  };
  return entries;
}

const MixerEntry& find_mixer(const std::string& name) {
  std::vector<std::string> names;
  for (const MixerEntry& entry : mixers()) {
    if (entry.name == name) return entry;
    names.push_back(entry.name);
  }
  throw Error("unknown mixer '" + name + "'" + suggestion(name, names));
}

namespace {

// The state of a recurrence is allocated whole, in training too.
void check_state_size(const Mixer& mixer) {
  if (mixer.past()) return;
  const int64_t bytes = mixer.state_bytes(0), memory = memory_size();
  if (bytes <= memory / 2) return;
  throw Error("the state of a sequence takes " + format_bytes(bytes) +
              ", too much for this machine's memory, " + format_bytes(memory) +
              "; lower the layer's own sizes");
}

}  // namespace

MixerPlan read_mixer(config::Table& table, const BlockDefaults& defaults) {
  const MixerEntry* entry = nullptr;
  const std::string name = table.require("mixer");
  try {
    entry = &find_mixer(name);
  } catch (const Error& error) {
    throw Error(table.name("mixer") + ": " + error.what());
  }
  const auto at_table = [path = table.path()](const auto& make) {
    try {
      return make();
    } catch (const Error& error) {
      const std::string message = error.what();
      const bool named = message.find(path) != std::string::npos;
      throw Error(named ? message : path + ": " + message);
    }
  };
  MixerPlan plan = at_table([&] { return entry->read(table, defaults); });
  plan.build = [at_table, build = std::move(plan.build)] {
    return at_table([&] {
      std::shared_ptr<Mixer> mixer = build();
      check_state_size(*mixer);
      return mixer;
    });
  };
  return plan;
}

}  // namespace hopmix::nn
