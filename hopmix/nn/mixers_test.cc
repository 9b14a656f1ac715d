// Properties of every mixer; a new mixer adds one row to the table below.
#include <gtest/gtest.h>
#include <omp.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>

#include "hopmix/base/testing.h"
#include "hopmix/nn/registry.h"

namespace hopmix::nn {
namespace {

struct Case {
  std::string label, mixer, keys;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.mixer << " {" << c.keys << "}"; }

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"attention", "attention", ""},
      {"attention-rope", "attention", "rope=true"},
      {"attention-no-shift", "attention", "token_shift=false"},
      {"attention-grouped", "attention", "heads=6\nkv_heads=2\nhead_width=5"},
      {"attention-published", "attention", "mem='m'\nkv_heads=2"},
      {"mura", "mura", "publisher={heads=2}\nwidths=[3,1,1]"},
      {"mura-one-hop", "mura", "publisher={heads=1, head_width=16}\nheads=3\nwidths=[5]"},
      {"mura-exact", "mura",
       "publisher={heads=4, kv_heads=2, rope=true}\nwidths=[4,2]\nset='exact'\nheads=8"},
      {"mura-own-earlier", "mura",
       "publisher={heads=2, rope=true}\nkv='own'\ninclude_self=false\nwidths=[4,1]"},
      {"mura-no-gradient", "mura", "publisher={heads=2}\ngradient=false\ntoken_shift=false"},
      {"topk-access", "topk_access", "publisher={heads=2}\nkappa=6"},
      {"topk-access-mamba2", "topk_access",
       "publisher={heads=1}\nkappa=3\nrecurrent={mixer='mamba2', head_width=4, state=5}"},
      {"hysparse", "hysparse", "publisher={heads=4, kv_heads=1}\nkappa=6\nwindow=5"},
      {"retrieved-register", "retrieved_recurrence", "publisher={heads=2}\nkappa=5\nhops=3"},
      {"retrieved-shared", "retrieved_recurrence",
       "publisher={heads=2, kv_heads=1}\nkappa=3\nreadout='shared'\ntoken_shift=false"},
      {"retrieved-scalar", "retrieved_recurrence",
       "publisher={heads=2, kv_heads=1}\nform='scalar'\nheads=6"},
      {"local", "local_attention", "window=5"},
      {"sparse-inheriting", "sparse_attention", "pattern='cached(2^k)|global(2)'\nrope=true"},
      {"sparse-not-inheriting", "sparse_attention", "pattern='strided(3)|window(2)'"},
      {"glr-dense", "glr", "pattern='dense'"},
      {"glr-window", "glr", "pattern='window(4)'\nrope=true"},
      {"glr-2k", "glr", "pattern='2^k'"},
      {"glr-k2-cached", "glr", "pattern='cached(k^2+1)'"},
      {"glr-blocks", "glr", "pattern='blocks(8)'"},
      {"glr-random", "glr", "pattern='random(3,7)'\nheads=2"},
      {"glr-independent", "glr", "pattern='k^2+1'\ncoefficients='independent'"},
      {"glr-independent-cached", "glr",
       "pattern='cached(k^2+1)'\ncoefficients='independent'\nrope=true"},
      {"glr-normalized", "glr", "pattern='k^2+1'\ncoefficients='normalized'"},
      {"glr-normalized-dense", "glr", "pattern='dense'\ncoefficients='normalized'\nheads=2"},
      {"glr-normalized-cached", "glr",
       "pattern='cached(k^2+1)'\ncoefficients='normalized'\nrope=true"},
      {"glr-normalized-read", "glr", "pattern='2^k'\ncoefficients='normalized_read'"},
      {"glr-normalized-read-cached", "glr",
       "pattern='cached(2^k)'\ncoefficients='normalized_read'\ntoken_shift=false"},
      {"glr-dense-rope", "glr", "pattern='dense'\nrope=true"},
      {"chacal", "chacal", ""},
      {"chacal-rope", "chacal", "gamma=0.5\nrope=true\nheads=2"},
      {"chacal-attention", "chacal", "gamma=0.0\ntoken_shift=false"},
      {"block-chacal", "block_chacal", "block=5"},
      {"block-chacal-default", "block_chacal", "rope=true"},
      {"block-chacal-one", "block_chacal", "block=1\ngamma=0.5"},
      {"gated-channel", "gated_linear_recurrence", ""},
      {"gated-head", "gated_linear_recurrence", "decay='head'\nheads=2"},
      {"deltanet", "deltanet", ""},
      {"deltanet-reflecting", "deltanet", "negative_eigenvalues=true\nheads=2\nconv=2\nexpand_v=3"},
      {"gated-deltanet", "gated_deltanet", ""},
      {"gated-deltanet-wide", "gated_deltanet",
       "negative_eigenvalues=true\nhead_width=20\nheads=3\nexpand_v=1"},
      {"kda", "kda", ""},
      {"kda-wide", "kda", "head_width=20\nheads=3\nexpand_v=2\nrank=5\nconv=2"},
      {"linear-attention", "linear_attention", ""},
      {"linear-attention-normalizer", "linear_attention",
       "normalizer=true\ntoken_shift=false\nheads=2"},
      {"linear-attention-relu", "linear_attention", "feature_map='relu'"},
      {"linear-attention-softmax", "linear_attention", "feature_map='softmax'"},
      {"gla", "gla", ""},
      {"gla-published", "gla", "conv=0\nheads=2\nexpand_v=2.0"},
      {"mamba2", "mamba2", ""},
      {"mamba2-small", "mamba2", "expand=1\nhead_width=4\nstate=5\nconv=2"},
      {"log-linear-mamba2", "log_linear_mamba2", ""},
      {"log-linear-mamba2-small", "log_linear_mamba2",
       "expand=1\nhead_width=6\nstate=6\nconv=2\nlevels=8"},
      {"log-linear-gated-deltanet", "log_linear_gated_deltanet", ""},
      {"log-linear-gated-deltanet-reflecting", "log_linear_gated_deltanet",
       "negative_eigenvalues=true\nhead_width=20\nheads=3\nexpand_v=1\nlevels=9"},
      {"mamba", "mamba", ""},
      {"mamba-sizes", "mamba", "expand=1\nstate=3\nconv=2"},
      {"griffin", "griffin", ""},
      {"griffin-sizes", "griffin", "recurrent_width=30\nheads=3\nconv=1"},
      {"diagonal-ssm", "diagonal_ssm", ""},
      {"diagonal-ssm-sizes", "diagonal_ssm", "state=3\ntoken_shift=false"},
      {"sliding-window", "sliding_window_recurrence", ""},
      {"sliding-window-head", "sliding_window_recurrence", "block=5\ndecay='head'"},
      {"chimera", "chimera", ""},
      {"chimera-chain", "chimera", "pattern='window(1)'\nstate=3\nheads=2"},
      {"chimera-cached", "chimera", "pattern='cached(2^k)'\ntoken_shift=false"},
      {"chimera-sparse", "chimera", "pattern='offsets(7,11)|global(1)'"},
      {"parallel", "parallel", ""},
      {"parallel-gates", "parallel", "combine='gates'"},
      {"parallel-nested", "parallel",
       "branches=[{mixer='parallel', branches=[{mixer='gated_deltanet'}]},"
       " {mixer='glr', pattern='cached(2^k)'}, {mixer='attention', rope=true}]"},
  };
  return all;
}

// The attention whose cache a mixer reads, then that mixer: y = reader(x + publisher(x)).
class Reading : public Mixer {
 public:
  Reading(std::shared_ptr<Mixer> publisher, std::shared_ptr<Mixer> reader)
      : publisher_(register_module("publisher", publisher)),
        reader_(register_module("reader", reader)) {}

  Tensor forward(const Tensor& x, Context& context) override {
    Context all;
    all.packing = context.packing;
    const Tensor y = x + publisher_->forward(x, all);
    all.rows = context.rows;
    return reader_->forward(y, all);
  }

  State initial_state(int64_t batch) const override {
    State state;
    put("publisher ", publisher_->initial_state(batch), state);
    put("reader ", reader_->initial_state(batch), state);
    return state;
  }

  Tensor step(const Tensor& x, State& state, Context& context) override {
    State first = take("publisher ", state), second = take("reader ", state);
    const Tensor y = x + publisher_->step(x, first, context);
    const Tensor z = reader_->step(y, second, context);
    put("publisher ", first, state);
    put("reader ", second, state);
    ++state.position;
    return z;
  }

  int64_t state_bytes(int64_t t) const override {
    return publisher_->state_bytes(t) + reader_->state_bytes(t);
  }

  void check_state(const State& state) const override {
    for (const auto& [name, tensor] : state.tensors) {
      if (!name.starts_with("publisher ") && !name.starts_with("reader ")) throw Error(name);
    }
    publisher_->check_state(take("publisher ", state));
    reader_->check_state(take("reader ", state));
  }

 private:
  static void put(const std::string& prefix, const State& part, State& whole) {
    for (const auto& [name, tensor] : part.tensors) whole.tensors[prefix + name] = tensor;
  }
  static State take(const std::string& prefix, const State& whole) {
    State part;
    part.position = whole.position;
    for (const auto& [name, tensor] : whole.tensors) {
      if (name.starts_with(prefix)) part.tensors[name.substr(prefix.size())] = tensor;
    }
    return part;
  }

  std::shared_ptr<Mixer> publisher_, reader_;
};

class MixerTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr int64_t kWidth = 24;

  std::shared_ptr<Mixer> make() const {
    torch::manual_seed(1);
    toml::table keys = config::parse(GetParam().keys, GetParam().label);
    const BlockDefaults defaults{.width = kWidth, .heads = 4};
    std::optional<MixerPlan> publisher;
    if (keys.contains("publisher")) {
      toml::table from = *keys["publisher"].as_table();
      from.insert("mem", "m");
      config::Table table(from);
      publisher = find_mixer("attention").read(table, defaults);
      table.finish();
      keys.erase("publisher");
      keys.insert("mem", "m");
    }
    config::Table table(keys);
    const MixerPlan mixer = find_mixer(GetParam().mixer).read(table, defaults);
    table.finish();
    if (!publisher) return mixer.build();
    const std::shared_ptr<Mixer> first = publisher->build();
    return std::make_shared<Reading>(first, mixer.build());
  }

  static Tensor input(int64_t batch, int64_t time) {
    torch::manual_seed(2);
    return torch::randn({batch, time, kWidth});
  }

  static Tensor run(Mixer& mixer, const Tensor& x) {
    Context context;
    return mixer.forward(x, context);
  }

  // Documents in one row, one of them empty.
  static const std::vector<int64_t>& lengths() {
    static const std::vector<int64_t> all = {63, 1, 0, 100, 2, 65, 0};
    return all;
  }

  static Tensor packed_input() { return input(1, 231); }

  // In layers that read only earlier tokens, the first token of a document reads nothing.
  static constexpr int64_t kMayReadNothing = 3;

  static Tensor run_packed(Mixer& mixer, const Tensor& x) {
    Context context;
    const Tensor ends = torch::tensor(lengths(), torch::kInt64).cumsum(0);
    context.packing = Packing(torch::cat({torch::zeros({1}, torch::kInt64), ends}), x);
    return mixer.forward(x, context);
  }

  // `one(first, last)` of every document that has tokens.
  template <typename One>
  static void for_each_document(const One& one) {
    int64_t first = 0;
    for (const int64_t length : lengths()) {
      if (length > 0) one(first, first + length);
      first += length;
    }
  }

  // The gradients of the input and of every parameter, and the outputs.
  static std::vector<Tensor> results(Mixer& mixer, const Tensor& x, const Tensor& y) {
    std::vector<Tensor> all = {y.detach(), x.grad().clone()};
    for (const Tensor& parameter : mixer.parameters()) all.push_back(parameter.grad().clone());
    return all;
  }
};

TEST_P(MixerTest, StepEqualsForwardAtEveryPosition) {
  const auto mixer = make();
  mixer->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  for (const int64_t time : {1, 2, 63, 64, 65, 100}) {
    const Tensor x = input(2, time).to(torch::kFloat64);
    const Tensor whole = run(*mixer, x);
    State state = mixer->initial_state(2);
    Context context;
    for (int64_t t = 0; t < time; ++t) {
      const Tensor y = mixer->step(x.select(1, t), state, context);
      // The state of the gated recurrence is float32 only for narrower parameters; here all is
      // float64.
      EXPECT_LT((y - whole.select(1, t)).abs().max().item<double>(), 1e-12)
          << "t = " << t << " of " << time;
      EXPECT_EQ(state.position, t + 1);
    }
  }
}

TEST_P(MixerTest, StateBytesAreThoseAllocated) {
  for (const auto dtype : {torch::kFloat32, torch::kFloat64, torch::kBFloat16}) {
    const auto mixer = make();
    mixer->to(dtype);
    const torch::NoGradGuard no_grad;
    const Tensor x = input(3, 70).to(dtype);
    State state = mixer->initial_state(3);
    EXPECT_EQ(state.bytes(), 3 * mixer->state_bytes(0));
    Context context;
    for (int64_t t = 0; t < 70; ++t) {
      mixer->step(x.select(1, t), state, context);
      ASSERT_EQ(state.bytes(), 3 * mixer->state_bytes(t + 1)) << "t = " << t;
      for (const auto& [name, tensor] : state.tensors) {
        // The tensor keeps no more memory alive than its size.
        EXPECT_LE(static_cast<int64_t>(tensor.storage().nbytes()),
                  tensor.numel() * tensor.element_size())
            << name;
      }
    }
  }
}

TEST_P(MixerTest, AStateIsCheckedWhole) {
  const auto mixer = make();
  const torch::NoGradGuard no_grad;
  const Tensor x = input(1, 45);
  State state = mixer->initial_state(1);
  Context context;
  for (int64_t t = 0; t < 40; ++t) {
    ASSERT_EQ(error_of([&] { mixer->check_state(state); }), "") << t;
    mixer->step(x.select(1, t), state, context);
  }
  mixer->prefill(x.slice(1, 40), state, context);
  ASSERT_EQ(error_of([&] { mixer->check_state(state); }), "");
  const auto refuses = [&](const std::string& name, const Tensor& tensor) {
    State bad = state;
    bad.tensors[name] = tensor;
    return !error_of([&] { mixer->check_state(bad); }).empty();
  };
  for (const auto& [name, tensor] : state.tensors) {
    State less = state;
    less.tensors.erase(name);
    EXPECT_NE(error_of([&] { mixer->check_state(less); }), "") << name;
    const bool integer = tensor.scalar_type() == torch::kInt32;
    EXPECT_TRUE(refuses(name, tensor.to(integer ? torch::kFloat32 : torch::kInt32))) << name;
    EXPECT_TRUE(refuses(name, torch::cat({tensor, tensor}))) << name;
    if (tensor.size(1) > 0) {
      EXPECT_TRUE(refuses(name, torch::cat({tensor, tensor}, 1))) << name;
    }
    EXPECT_TRUE(refuses(name, tensor.unsqueeze(0))) << name;
    if (!integer) continue;
    for (const int value : {-2, 45, 1 << 30}) {
      Tensor bad = tensor.clone();
      bad.view({-1})[0] = value;
      EXPECT_TRUE(refuses(name, bad)) << name << " " << value;
    }
  }
  EXPECT_TRUE(refuses("another", torch::zeros({1, 2})));
  EXPECT_EQ(error_of([&] { mixer->check_step(state.position); }), "");
}

// Reading a text in pieces of any size equals reading it token by token: outputs, state, later
// steps.
TEST_P(MixerTest, PrefillIsManySteps) {
  const auto mixer = make();
  mixer->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  const std::vector<std::vector<int64_t>> cuts = {
      {70}, {1, 2, 63}, {64, 1, 50}, {1, 65, 2}, {2, 64}};
  for (const std::vector<int64_t>& pieces : cuts) {
    const int64_t time = std::accumulate(pieces.begin(), pieces.end(), int64_t{10});
    const Tensor x = input(2, time).to(torch::kFloat64);
    const Tensor whole = run(*mixer, x);
    State state = mixer->initial_state(2);
    Context context;
    for (const int64_t piece : pieces) {
      const int64_t t = state.position;
      const Tensor y = mixer->prefill(x.slice(1, t, t + piece), state, context);
      ASSERT_EQ(y.sizes(), whole.slice(1, t, t + piece).sizes());
      EXPECT_LT((y - whole.slice(1, t, t + piece)).abs().max().item<double>(), 1e-12)
          << "tokens " << t << " to " << t + piece;
      ASSERT_EQ(state.position, t + piece);
      EXPECT_EQ(state.bytes(), 2 * mixer->state_bytes(state.position)) << state.position;
      for (const auto& [name, tensor] : state.tensors) {
        EXPECT_LE(static_cast<int64_t>(tensor.storage().nbytes()),
                  tensor.numel() * tensor.element_size())
            << name;
      }
    }
    for (int64_t t = state.position; t < time; ++t) {
      const Tensor y = mixer->step(x.select(1, t), state, context);
      EXPECT_LT((y - whole.select(1, t)).abs().max().item<double>(), 1e-12) << "t = " << t;
    }
  }
}

// Sums may be in a different order, but they are float32 sums; narrower parameters use the same
// path.
TEST_P(MixerTest, PrefillInBfloat16) {
  const auto mixer = make();
  mixer->to(torch::kBFloat16);
  const torch::NoGradGuard no_grad;
  const Tensor x = input(2, 70).to(torch::kBFloat16);
  State state = mixer->initial_state(2), stepped = mixer->initial_state(2);
  Context context;
  const Tensor y = mixer->prefill(x, state, context);
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(y.isfinite().all().item<bool>());
  // With the same weights and inputs in double, prefill is about as accurate as forward. Compare
  // medians, because rounding may change which tokens are selected.
  Context third;
  const Tensor whole = mixer->forward(x, third);
  mixer->to(torch::kFloat64);
  const Tensor exact = run(*mixer, x.to(torch::kFloat64));
  const auto error = [&](const Tensor& values) {
    return (values.to(torch::kFloat64) - exact).abs().median().item<double>();
  };
  EXPECT_LE(error(y), 2 * error(whole) + 0.002 * exact.abs().max().item<double>());
  mixer->to(torch::kBFloat16);
  Context other;
  for (int64_t t = 0; t < 70; ++t) mixer->step(x.select(1, t), stepped, other);
  ASSERT_EQ(state.tensors.size(), stepped.tensors.size());
  for (const auto& [name, tensor] : state.tensors) {
    EXPECT_EQ(tensor.scalar_type(), stepped.tensors.at(name).scalar_type()) << name;
    EXPECT_EQ(tensor.sizes(), stepped.tensors.at(name).sizes()) << name;
  }
}

// Advancing a copy of a state leaves no trace in the original.
TEST_P(MixerTest, AForkGoesItsOwnWay) {
  const auto mixer = make();
  mixer->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  const Tensor x = input(2, 100).to(torch::kFloat64);
  const Tensor whole = run(*mixer, x);
  for (const int64_t cut : {0, 1, 40}) {
    State state = mixer->initial_state(2);
    Context context;
    for (int64_t t = 0; t < cut; ++t) mixer->step(x.select(1, t), state, context);
    State fork = state, prefilled = state;
    Context other;
    for (int64_t t = cut; t < 100; ++t) {
      const Tensor y = mixer->step(x.select(1, t), state, context);
      if (t < 70) mixer->step(-2 * x.select(1, t), fork, other);
      if (t == 42) mixer->prefill(-x.slice(1, cut, 70), prefilled, other);
      EXPECT_LT((y - whole.select(1, t)).abs().max().item<double>(), 1e-12) << cut << ", " << t;
    }
    EXPECT_EQ(fork.position, 70);
  }
}

// Sequences of different lengths that join and leave, one of them a fork.
TEST_P(MixerTest, StepEachIsTheStepOfEach) {
  const auto mixer = make();
  mixer->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  const Tensor x = input(4, 100).to(torch::kFloat64);
  x[3].slice(0, 0, 41).copy_(x[2].slice(0, 0, 41));
  const Tensor whole = run(*mixer, x);
  const std::vector<int64_t> behind = {0, 1, 41};
  std::vector<State> all;
  Context context;
  for (int64_t s = 0; s < 3; ++s) {
    all.push_back(mixer->initial_state(1));
    for (int64_t t = 0; t < behind[s]; ++t) {
      mixer->step(x[s][t].unsqueeze(0), all.back(), context);
    }
  }
  all.push_back(all[2]);
  for (int64_t i = 0; i < 40; ++i) {
    std::vector<size_t> running;
    for (const size_t s : {3, 1, 0, 2}) {
      if ((s != 1 || i < 20) && (s != 0 || i >= 7) && (s != 2 || i % 5 != 3)) running.push_back(s);
    }
    std::vector<State*> states;
    std::vector<Tensor> tokens, expected;
    for (const size_t s : running) {
      const auto row = static_cast<int64_t>(s);
      states.push_back(&all[s]);
      tokens.push_back(x[row][all[s].position]);
      expected.push_back(whole[row][all[s].position]);
    }
    std::vector<Context> contexts(running.size());
    const Tensor y = mixer->step_each(torch::stack(tokens), states, contexts);
    ASSERT_EQ(y.sizes(), torch::stack(expected).sizes());
    EXPECT_LT((y - torch::stack(expected)).abs().max().item<double>(), 1e-12) << "step " << i;
    for (const State* state : states) {
      ASSERT_EQ(state->bytes(), mixer->state_bytes(state->position));
      for (const auto& [name, tensor] : state->tensors) {
        EXPECT_LE(static_cast<int64_t>(tensor.storage().nbytes()),
                  tensor.numel() * tensor.element_size())
            << name;
      }
    }
  }
  EXPECT_EQ(all[0].position, 33);
  EXPECT_EQ(all[1].position, 21);
  EXPECT_EQ(all[3].position, 81);
}

TEST_P(MixerTest, WantedRowsAreThoseOfTheWhole) {
  const auto mixer = make();
  mixer->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  const Tensor x = input(2, 20).to(torch::kFloat64);
  Context context;
  context.rows = torch::tensor({0, 7, 19, 20, 39}, torch::kInt64);
  const Tensor some = mixer->forward(x, context);
  const Tensor expected = run(*mixer, x).flatten(0, 1).index_select(0, context.rows);
  ASSERT_EQ(some.sizes(), expected.sizes());
  EXPECT_LT((some - expected).abs().max().item<double>(), 1e-12);
}

TEST_P(MixerTest, NoTokenSeesTheFuture) {
  const auto mixer = make();
  const torch::NoGradGuard no_grad;
  const Tensor x = input(2, 65);
  const Tensor before = run(*mixer, x);
  for (const int64_t cut : {1, 30, 64}) {
    Tensor changed = x.clone();
    changed.slice(1, cut).mul_(1e4);
    const Tensor after = run(*mixer, changed);
    EXPECT_TRUE(torch::equal(before.slice(1, 0, cut), after.slice(1, 0, cut))) << "cut = " << cut;
    EXPECT_FALSE(torch::equal(before.slice(1, cut), after.slice(1, cut)));
  }
}

TEST_P(MixerTest, EveryParameterAndTheInputGetFiniteGradients) {
  const auto mixer = make();
  const Tensor x = input(2, 33).requires_grad_();
  run(*mixer, x).square().sum().backward();
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
  EXPECT_GT(x.grad().abs().max().item<double>(), 0);
  for (const auto& item : mixer->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
    EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << item.key();
  }
}

TEST_P(MixerTest, ThreadCountDoesNotChangeABit) {
  const auto mixer = make();
  // PyTorch splits elementwise functions across threads from 32,768 numbers on, and the last bits
  // of its softplus and SiLU depend on where it splits.
  const Tensor x = input(4, 65);
  const int threads = at::get_num_threads();
  // Its batched products come from MKL, whose order of summation depends on the number of threads;
  // for these mixers only hopmix's operators use several threads.
  const bool torch_products = GetParam().mixer == "diagonal_ssm";
  const auto gradients = [&](int count) {
    at::set_num_threads(torch_products ? 1 : count);
    omp_set_num_threads(count);
    mixer->zero_grad();
    const Tensor y = run(*mixer, x);
    y.square().sum().backward();
    std::vector<Tensor> all = {y.detach()};
    for (const auto& item : mixer->named_parameters()) all.push_back(item.value().grad().clone());
    return all;
  };
  const std::vector<Tensor> one = gradients(1), two = gradients(2);
  at::set_num_threads(threads);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(torch::equal(one[i], two[i])) << i;
}

TEST_P(MixerTest, APackedDocumentIsThatDocumentAlone) {
  const auto mixer = make();
  mixer->to(torch::kFloat64);
  const Tensor x = packed_input().to(torch::kFloat64).requires_grad_();
  const Tensor y = run_packed(*mixer, x);
  const Tensor weight = torch::randn_like(y);
  (y * weight).sum().backward();
  const std::vector<Tensor> packed = results(*mixer, x, y);
  mixer->zero_grad();
  x.mutable_grad() = Tensor();
  std::vector<Tensor> outputs;
  for_each_document([&](int64_t first, int64_t last) {
    outputs.push_back(run(*mixer, x.slice(1, first, last)));
    (outputs.back() * weight.slice(1, first, last)).sum().backward();
  });
  const std::vector<Tensor> alone = results(*mixer, x, torch::cat(outputs, 1));
  ASSERT_EQ(packed.size(), alone.size());
  for (size_t i = 0; i < packed.size(); ++i) {
    ASSERT_EQ(packed[i].sizes(), alone[i].sizes());
    const double scale = std::max(1.0, alone[i].abs().max().item<double>());
    EXPECT_LT((packed[i] - alone[i]).abs().max().item<double>(), 1e-12 * scale) << i;
  }
}

TEST_P(MixerTest, NothingCrossesFromOnePackedDocumentToAnother) {
  const auto mixer = make();
  const torch::NoGradGuard no_grad;
  const Tensor x = packed_input();
  const Tensor before = run_packed(*mixer, x);
  for (const double factor : {1e4, std::nan("")}) {
    for_each_document([&](int64_t first, int64_t last) {
      Tensor changed = x.clone();
      changed.slice(1, first, last).mul_(factor);
      const Tensor after = run_packed(*mixer, changed);
      EXPECT_TRUE(torch::equal(before.slice(1, 0, first), after.slice(1, 0, first))) << first;
      EXPECT_TRUE(torch::equal(before.slice(1, last), after.slice(1, last))) << first;
      if (last - first < kMayReadNothing) return;
      EXPECT_FALSE(torch::equal(before.slice(1, first, last), after.slice(1, first, last)));
    });
  }
}

// The same for gradients: a loss on one document's outputs does not reach another document.
TEST_P(MixerTest, NoGradientCrossesFromOnePackedDocumentToAnother) {
  const auto mixer = make();
  const Tensor x = packed_input().requires_grad_();
  const Tensor y = run_packed(*mixer, x);
  for_each_document([&](int64_t first, int64_t last) {
    const Tensor grad =
        torch::autograd::grad({y.slice(1, first, last).square().sum()}, {x}, {}, true)[0];
    EXPECT_EQ(grad.slice(1, 0, first).count_nonzero().item<int64_t>(), 0) << first;
    EXPECT_EQ(grad.slice(1, last).count_nonzero().item<int64_t>(), 0) << first;
    if (last - first >= kMayReadNothing) {
      EXPECT_GT(grad.abs().max().item<double>(), 0);
    }
  });
}

TEST_P(MixerTest, PackedInBfloat16) {
  const auto mixer = make();
  mixer->to(torch::kBFloat16);
  const torch::NoGradGuard no_grad;
  const Tensor x = packed_input().to(torch::kBFloat16);
  const Tensor y = run_packed(*mixer, x);
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  for_each_document([&](int64_t first, int64_t last) {
    const Tensor alone = run(*mixer, x.slice(1, first, last)).to(torch::kFloat64);
    const Tensor error = (y.slice(1, first, last).to(torch::kFloat64) - alone).abs();
    // float32 sums in a different order, followed by one rounding.
    EXPECT_LE(error.max().item<double>(), 0x1p-7 * alone.abs().max().item<double>()) << first;
  });
}

INSTANTIATE_TEST_SUITE_P(Mixers, MixerTest, testing::ValuesIn(cases()), [](const auto& test) {
  std::string name = test.param.label;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Registry, EveryMixerIsTestedAndDescribed) {
  for (const MixerEntry& entry : mixers()) {
    const auto tested = std::any_of(cases().begin(), cases().end(),
                                    [&](const Case& c) { return c.mixer == entry.name; });
    EXPECT_TRUE(tested) << entry.name << " has no row in the table of this file";
    for (const std::string& text : {entry.equation, entry.reads, entry.cache, entry.source})
      EXPECT_FALSE(text.empty());
  }
}

TEST(Registry, UnknownNameSuggestsTheNearest) {
  try {
    find_mixer("atention");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "unknown mixer 'atention'; did you mean 'attention'?");
  }
}

}  // namespace
}  // namespace hopmix::nn
