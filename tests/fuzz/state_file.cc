// State files of a small model: an error of one line, or a session that continues. Every input starts from a valid file, of
// which it changes some bytes or which it cuts.
#include "hopmix/decode/state_file.h"

#include <fstream>
#include <iterator>

#include "tests/fuzz/models.h"

namespace {

using namespace hopmix;

struct Valid {
  std::shared_ptr<nn::LanguageModel> model;
  std::string bytes;
};

const Valid& valid() {
  static const Valid one = [] {
    const torch::NoGradGuard no_grad;
    const auto model = fuzz::make_model(
        "width = 8\nheads = 2\npositions = 'rope'\nblocks = [{mixer = 'glr', pattern = 'cached(k^2+1)'}, {mixer = 'attention'}, "
        "{mixer = 'gated_deltanet'}]", 256, 64);  // fmt: skip
    decode::Session session{model->initial_state(1), {65, 66}};
    model->prefill(torch::randint(256, {1, 20}, torch::kLong), session.state);
    const auto file = fuzz::file_of("", ".state");
    decode::save_session(file, session, "mark");
    std::ifstream in(file, std::ios::binary);
    return Valid{model, {std::istreambuf_iterator<char>(in), {}}};
  }();
  return one;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  std::string bytes = valid().bytes;
  const auto length = static_cast<int64_t>(bytes.size());
  if (input.byte() % 4 == 0) bytes.resize(static_cast<size_t>(input.number(0, length - 1)));
  for (int64_t changes = input.number(1, 8); changes > 0 && !bytes.empty(); --changes) {
    // Most of a file is numbers; what is worth changing is at its front.
    const auto most = static_cast<int64_t>(bytes.size()) - 1;
    bytes[static_cast<size_t>(input.number(0, input.byte() % 4 == 0 ? most : std::min<int64_t>(most, 2500)))] = static_cast<char>(input.byte());
  }
  try {
    const torch::NoGradGuard no_grad;
    decode::Session session = decode::load_session(fuzz::file_of(bytes), *valid().model, "mark");
    for (const int64_t token : session.unread) CHECK(token >= 0 && token < 256);
    valid().model->step(torch::tensor({int64_t{65}}), session.state);
  } catch (const Error& error) {
    fuzz::check_message(error);
  }
  return 0;
}
