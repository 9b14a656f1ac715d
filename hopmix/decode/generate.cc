#include "hopmix/decode/generate.h"

namespace hopmix::decode {

Generation generate(nn::LanguageModel& model, const text::Tokenizer& tokenizer,
                    const std::string& prompt, const GenerateConfig& config,
                    const std::function<void(std::string_view)>& show) {
  Session session{model.initial_state(1)};
  return generate(model, tokenizer, prompt, config, show, session);
}

Generation generate(nn::LanguageModel& model, const text::Tokenizer& tokenizer,
                    const std::string& prompt, const GenerateConfig& config,
                    const std::function<void(std::string_view)>& show, Session& session) {
  Batch batch(model, tokenizer);  // of one sequence
  batch.join(prompt, config, std::move(session));
  for (;;) {
    Batch::Piece piece = std::move(batch.step().front());
    if (piece.left) session = std::move(piece.left->session);
    if (!piece.text.empty()) show(piece.text);
    if (!piece.left) continue;
    if (!piece.left->error.empty()) throw Error(piece.left->error);
    return std::move(piece.left->made);
  }
}

}  // namespace hopmix::decode
