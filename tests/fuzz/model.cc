// Random models: two steps of training, weights saved and loaded, and decoding step by step, by prefill and by the whole
// sequence agree.
#include "hopmix/train/safetensors.h"
#include "tests/fuzz/models.h"

namespace {

using namespace hopmix;

// Relative to the largest logit: the sums of the ways differ in their order.
bool close(const torch::Tensor& a, const torch::Tensor& b) {
  const double largest = std::max(1.0, b.abs().max().item<double>());
  return ((a - b).abs().max() <= 1e-8 * largest).item<bool>();
}

void train(nn::LanguageModel& model, const torch::Tensor& tokens) {
  torch::optim::SGD optimizer(model.parameters(), 0.01);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    const torch::Tensor logits = model.forward(tokens);
    const torch::Tensor loss = torch::nn::functional::cross_entropy(logits.flatten(0, 1), tokens.flatten());
    CHECK(loss.isfinite().item<bool>());
    loss.backward();
    for (const auto& parameter : model.named_parameters()) {
      CHECK(!parameter->grad().defined() || parameter->grad().isfinite().all().item<bool>());
    }
    optimizer.step();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const std::string table = fuzz::model_table(input);
  const int64_t length = input.number(1, 40), batch = input.number(1, 3), cut = input.number(0, length);
  try {
    const auto model = fuzz::make_model(table, 11, length), copy = fuzz::make_model(table, 11, length);
    model->to(torch::kDouble);
    copy->to(torch::kDouble);
    const torch::Tensor tokens = torch::randint(11, {batch, length}, torch::kLong);
    train(*model, tokens);

    const torch::NoGradGuard no_grad;
    std::map<std::string, at::Tensor> weights;
    for (const auto& parameter : model->named_parameters()) weights[parameter.key()] = parameter.value().detach();
    const auto file = fuzz::file_of("", ".safetensors");
    train::write_safetensors(file, weights);
    const auto read = train::read_safetensors(file);
    for (auto& parameter : copy->named_parameters()) parameter.value().copy_(read.tensors.at(parameter.key()));

    const torch::Tensor logits = model->forward(tokens);
    CHECK(torch::equal(copy->forward(tokens), logits));
    nn::ModelState state = copy->initial_state(batch);
    if (cut > 0) CHECK(close(copy->prefill(tokens.narrow(1, 0, cut), state), logits.select(1, cut - 1)));
    for (int64_t t = cut; t < length; ++t) CHECK(close(copy->step(tokens.select(1, t), state), logits.select(1, t)));
  } catch (const Error& error) {
    fuzz::check_message(error);
  }
  return 0;
}
