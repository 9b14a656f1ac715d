#include "hopmix/train/train.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "hopmix/base/files.h"
#include "hopmix/base/testing.h"
#include "hopmix/train/checkpoint.h"
#include "hopmix/train/interrupt.h"
#include "hopmix/train/metrics.h"
#include "hopmix/train/optimizer.h"
#include "hopmix/train/run_directory.h"
#include "hopmix/train/safetensors.h"

namespace hopmix::train {
namespace {

namespace fs = std::filesystem;

class TrainTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("hopmix-train-test-" + std::to_string(getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  static Experiment experiment(const std::vector<std::string>& settings = {}) {
    toml::table document = config::parse(R"(
seed = 3
threads = 1
[task]
name = "copy"
m = 6
[model]
width = 16
[[model.blocks]]
mixer = "glr"
pattern = "2^k"
[train]
steps = 40
batch = 8
warmup = 5
log_every = 1
checkpoint_every = 10
eval_batches = 2
)",
                                         "test");
    for (const std::string& setting : settings) config::set(document, setting);
    return make_experiment(std::move(document));
  }

  // Losses by step, as written; they have enough digits to distinguish any two floats.
  static std::map<int64_t, std::string> losses(const fs::path& run) {
    std::map<int64_t, std::string> result;
    std::ifstream lines(run / "metrics.jsonl");
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json read = nlohmann::json::parse(line);
      if (read.contains("loss"))
        result[read["step"]] = read["loss"].dump() + " " + read["grad_norm"].dump();
    }
    return result;
  }

  fs::path root_;
};

TEST_F(TrainTest, WritesARunDirectoryAndLearns) {
  Experiment e = experiment({"train.steps=300", "train.lr=1e-2"});
  const TrainResult result = train(e, root_ / "run", false, true);
  EXPECT_EQ(result.step, 300);
  EXPECT_GT(result.score.all.percent(), 60.0);  // chance is 25
  for (const char* name : {"config.toml", "metrics.jsonl", "model.safetensors",
                           "optimizer.safetensors", "state.json"}) {
    EXPECT_TRUE(fs::exists(root_ / "run" / name)) << name;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(root_ / "run"), fs::directory_iterator()), 5);
  EXPECT_EQ(losses(root_ / "run").size(), 300u);
  EXPECT_NEAR(final_score(root_ / "run").at("accuracy").get<double>(), result.score.all.percent(),
              1e-9);
  // The resolved config holds the defaults and gives the same experiment.
  const toml::table written = config::parse_file(root_ / "run" / "config.toml");
  EXPECT_EQ(first_difference(written, make_experiment(written).config, "a", "b"), "");
  EXPECT_EQ(written["train"]["beta2"].value<double>(), 0.98);
}

TEST_F(TrainTest, WeightsThatAreLoadedScoreTheSame) {
  Experiment e = experiment();
  const TrainResult result = train(e, root_ / "run", false, true);
  Experiment fresh = experiment({"seed=3"});
  EXPECT_EQ(load_weights(root_ / "run", *fresh.model), 40);
  EXPECT_EQ(evaluate(fresh).all.right, result.score.all.right);
  EXPECT_EQ(evaluate(fresh).loss_sum, result.score.loss_sum);
}

// Enough work for several threads in every map, mixer and loss.
TEST_F(TrainTest, AnyNumberOfThreadsGivesTheSameLosses) {
  const int before = at::get_num_threads();
  for (const std::string mixer : {"attention", "glr", "gated_deltanet", "mamba2"}) {
    std::map<std::string, std::map<int64_t, std::string>> found;
    for (const std::string threads : {"1", "2", "3"}) {
      Experiment e = experiment({"threads=" + threads, "model.width=64", "train.batch=24",
                                 "train.steps=6", "model.blocks=[{mixer='" + mixer + "'}]"});
      const fs::path run = root_ / (mixer + threads);
      train(e, run, false, true);
      found[threads] = losses(run);
    }
    EXPECT_EQ(found["1"].size(), 6u) << mixer;
    EXPECT_EQ(found["2"], found["1"]) << mixer;
    EXPECT_EQ(found["3"], found["1"]) << mixer;
  }
  at::set_num_threads(before);
}

// Kills a training process at some moment, without warning, resumes it, and compares every loss.
TEST_F(TrainTest, KilledAndResumedGivesTheSameLosses) {
  {
    Experiment e = experiment();
    train(e, root_ / "whole", false, true);
  }
  const fs::path run = root_ / "killed";
  // Watch the file from outside, so that the kill falls at an arbitrary moment.
  const pid_t child = fork();
  if (child == 0) {
    at::set_num_threads(1);
    Experiment e = experiment();
    train(e, run, false, true);
    _exit(0);
  }
  for (;;) {
    std::error_code ignored;
    if (fs::exists(run / "state.json", ignored) && losses(run).size() >= 14) break;
    usleep(500);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  Experiment e = experiment();
  const TrainResult result = train(e, run, true, true);
  EXPECT_EQ(result.step, 40);
  EXPECT_EQ(losses(run), losses(root_ / "whole"));
}

// Packed documents: a run that is stopped and resumed equals an uninterrupted one, and the model
// learns.
TEST_F(TrainTest, LearnsAndResumesWithDocuments) {
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += std::string(i % 7 + 1, static_cast<char>('a' + i % 5)) + "\n\n";
  write_file(root_ / "text", text);
  const auto documents = [&](const std::string& positions) {
    return experiment({"task={name='text', path='" + (root_ / "text").string() +
                           "', length=24, documents='separated', separator=\"\\n\\n\"}",
                       "model.positions=" + positions, "train.lr=1e-2",
                       "train.checkpoint_every=15"});
  };
  for (const std::string positions : {"learned", "rope"}) {
    const fs::path whole = root_ / ("whole-" + positions), killed = root_ / ("killed-" + positions);
    Experiment e = documents(positions);
    const TrainResult result = train(e, whole, false, true);
    EXPECT_LT(result.score.loss(), 2.5);
    EXPECT_LT(std::stod(losses(whole)[40]), std::stod(losses(whole)[1]) / 2);
    EXPECT_DOUBLE_EQ(result.score.bytes, static_cast<double>(result.score.all.asked));
    EXPECT_LT(result.score.all.asked, 2 * 8 * 24) << "the ends of documents ask for nothing";

    const pid_t child = fork();
    if (child == 0) {
      at::set_num_threads(1);
      Experiment again = documents(positions);
      train(again, killed, false, true);
      _exit(0);
    }
    for (;;) {
      std::error_code ignored;
      if (fs::exists(killed / "state.json", ignored) && losses(killed).size() >= 18) break;
      usleep(500);
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    // Read like `hopmix train RUN --resume` does.
    Experiment again = make_experiment(config::parse_file(killed / "config.toml"));
    EXPECT_EQ(train(again, killed, true, true).step, 40);
    EXPECT_EQ(losses(killed), losses(whole)) << positions;
  }
}

TEST_F(TrainTest, InterruptSavesAndResumeGoesOn) {
  {
    Experiment e = experiment();
    train(e, root_ / "whole", false, true);
  }
  const fs::path run = root_ / "stopped";
  const pid_t child = fork();
  if (child == 0) {
    at::set_num_threads(1);
    Experiment e = experiment({"train.checkpoint_every=1000"});
    const TrainResult result = train(e, run, false, true);
    _exit(result.interrupted ? 7 : 0);
  }
  while (!fs::exists(run / "metrics.jsonl") || losses(run).size() < 3) usleep(500);
  kill(child, SIGINT);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_EQ(WEXITSTATUS(status), 7);
  Experiment e = experiment({"train.checkpoint_every=1000"});
  train(e, run, true, true);
  EXPECT_EQ(losses(run), losses(root_ / "whole"));
}

TEST(Interrupt, EverySignalThatAsksToStop) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    {
      const InterruptGuard guard;
      EXPECT_FALSE(guard.interrupted());
      raise(number);
      EXPECT_TRUE(guard.interrupted());
      if (number == SIGHUP) raise(SIGHUP);  // a closed terminal may send two
    }
    struct sigaction now {};
    sigaction(number, nullptr, &now);
    EXPECT_EQ(now.sa_handler, SIG_DFL) << number;
  }
  std::signal(SIGHUP, SIG_IGN);  // nohup
  {
    const InterruptGuard guard;
    raise(SIGHUP);
    EXPECT_FALSE(guard.interrupted());
  }
  std::signal(SIGHUP, SIG_DFL);
}

TEST_F(TrainTest, CheckpointSurvivesAKillBetweenAnyTwoOfItsWrites) {
  const fs::path run = root_ / "run";
  Experiment e = experiment({"train.steps=10"});
  train(e, run, false, true);
  const std::string old_model = read_file(run / "model.safetensors");
  const std::string old_optimizer = read_file(run / "optimizer.safetensors");
  const std::string old_state = read_file(run / "state.json");
  const auto optimizer = make_optimizer(*e.model, e.train);
  load_checkpoint(run, *e.model, *optimizer);
  {
    torch::NoGradGuard no_grad;
    for (torch::Tensor& p : e.model->parameters()) p.add_(1.0);
  }
  save_checkpoint(run, *e.model, *optimizer, 20);
  const std::string new_model = read_file(run / "model.safetensors");
  const std::string new_optimizer = read_file(run / "optimizer.safetensors");
  const std::string new_state = read_file(run / "state.json");
  ASSERT_NE(old_model, new_model);

  // (files at the moment of a kill, the step that must load)
  struct Moment {
    std::map<std::string, std::string> files;
    int64_t step;
  };
  const std::string m = "model.safetensors", o = "optimizer.safetensors", s = "state.json";
  const std::vector<Moment> moments = {
      {{{m, old_model}, {o, old_optimizer}, {s, old_state}, {m + ".next", new_model}}, 10},
      {{{m, old_model},
        {o, old_optimizer},
        {s, old_state},
        {m + ".next.tmp", new_model.substr(0, 99)}},
       10},
      {{{m, old_model},
        {o, old_optimizer},
        {s, old_state},
        {m + ".next", new_model},
        {o + ".next", new_optimizer}},
       10},
      {{{m, old_model},
        {o, old_optimizer},
        {s, new_state},
        {m + ".next", new_model},
        {o + ".next", new_optimizer}},
       20},
      {{{m, new_model}, {o, old_optimizer}, {s, new_state}, {o + ".next", new_optimizer}}, 20},
      {{{m, new_model}, {o, new_optimizer}, {s, new_state}}, 20},
      // A first checkpoint, killed after its commit.
      {{{s, new_state}, {m + ".next", new_model}, {o + ".next", new_optimizer}}, 20},
  };
  for (size_t i = 0; i < moments.size(); ++i) {
    fs::remove_all(run);
    fs::create_directories(run);
    for (const auto& [name, bytes] : moments[i].files) write_file(run / name, bytes);
    Experiment fresh = experiment({"train.steps=10"});
    // A reader finds the same step and renames nothing under the writer.
    EXPECT_EQ(load_weights(run, *fresh.model), moments[i].step) << "moment " << i;
    for (const auto& [name, bytes] : moments[i].files) EXPECT_EQ(read_file(run / name), bytes);
    const auto fresh_optimizer = make_optimizer(*fresh.model, fresh.train);
    EXPECT_EQ(load_checkpoint(run, *fresh.model, *fresh_optimizer), moments[i].step)
        << "moment " << i;
    save_checkpoint(root_, *fresh.model, *fresh_optimizer, moments[i].step);
    EXPECT_EQ(read_file(root_ / m), moments[i].step == 20 ? new_model : old_model)
        << "moment " << i;
    EXPECT_EQ(read_file(root_ / o), moments[i].step == 20 ? new_optimizer : old_optimizer)
        << "moment " << i;
  }
}

TEST_F(TrainTest, DamagedCheckpointsSaySo) {
  const fs::path run = root_ / "run";
  Experiment e = experiment({"train.steps=10"});
  train(e, run, false, true);
  const auto load = [&] {
    Experiment fresh = experiment({"train.steps=10"});
    const auto optimizer = make_optimizer(*fresh.model, fresh.train);
    load_checkpoint(run, *fresh.model, *optimizer);
  };
  EXPECT_EQ(error_of(load), "");
  const std::string model = read_file(run / "model.safetensors"),
                    optimizer = read_file(run / "optimizer.safetensors");
  write_file(run / "model.safetensors", model.substr(0, model.size() - 5));
  EXPECT_NE(error_of(load).find("model.safetensors"), std::string::npos);
  write_file(run / "model.safetensors", model);
  fs::remove(run / "optimizer.safetensors");
  EXPECT_NE(error_of(load).find("optimizer.safetensors"), std::string::npos);
  write_file(run / "optimizer.safetensors", optimizer);
  write_file(run / "state.json", "{\"step\": 9}");
  EXPECT_NE(error_of(load).find("is not from step 9, the step in state.json"), std::string::npos);
  write_file(run / "state.json", "{\"st");
  EXPECT_NE(error_of(load).find("is damaged"), std::string::npos);
  for (const char* step : {"4.5", "10.0", "-10", "\"10\"", "null", "100000000000000000010"}) {
    write_file(run / "state.json", std::string("{\"step\": ") + step + "}");
    EXPECT_EQ(error_of(load),
              "'" + (run / "state.json").string() + "' is damaged: it must hold {\"step\": N}")
        << step;
  }
  fs::remove(run / "state.json");
  EXPECT_NE(error_of(load).find("holds no checkpoint"), std::string::npos);
  write_file(run / "state.json", "{\"step\": 10}");
  Experiment other = experiment({"train.steps=10", "model.width=8"});
  const std::string message = error_of([&] { load_weights(run, *other.model); });
  EXPECT_NE(message.find("'embedding' is [5, 16], but the model has [5, 8]"), std::string::npos)
      << message;
}

TEST_F(TrainTest, EveryTensorOfACheckpointIsChecked) {
  const fs::path run = root_ / "run", model = run / "model.safetensors",
                 optimizer = run / "optimizer.safetensors";
  Experiment e = experiment({"train.steps=10"});
  train(e, run, false, true);
  const SafetensorsFile weights = read_safetensors(model), moments = read_safetensors(optimizer);
  const auto load = [&] {
    Experiment fresh = experiment({"train.steps=10"});
    const auto adamw = make_optimizer(*fresh.model, fresh.train);
    load_checkpoint(run, *fresh.model, *adamw);
  };
  const auto with = [&](const fs::path& file, const SafetensorsFile& good, const std::string& name,
                        const torch::Tensor& value) {
    SafetensorsFile changed = good;
    changed.tensors[name] = value;
    write_safetensors(file, changed.tensors, changed.metadata);
    const std::string message = error_of(load);
    write_safetensors(file, good.tensors, good.metadata);
    return message;
  };
  EXPECT_EQ(error_of(load), "");

  const torch::Tensor head = weights.tensors.at("head.weight");
  const std::string named = "'" + model.string() + "': 'head.weight' ";
  EXPECT_EQ(with(model, weights, "head.weight", head.view(torch::kInt32)),
            named + "is Int, but the model has Float");
  EXPECT_EQ(with(model, weights, "head.weight", head.to(torch::kFloat64)),
            named + "is Double, but the model has Float");
  for (const double value : {NAN, INFINITY}) {
    torch::Tensor spoiled = head.clone();
    spoiled[1][2] = value;
    EXPECT_EQ(with(model, weights, "head.weight", spoiled),
              named + "has a number that is not finite");
  }
  EXPECT_NE(with(model, weights, "another", head).find("holds 16 tensors, but the model has 15"),
            std::string::npos);

  const std::string mean = "head.weight.exp_avg", squares = "head.weight.exp_avg_sq";
  const std::string state = "optimizer state of 'head.weight': ";
  EXPECT_EQ(with(optimizer, moments, mean, head.view(torch::kInt32)),
            state + "exp_avg must be Float and finite");
  EXPECT_EQ(with(optimizer, moments, mean, torch::full_like(head, NAN)),
            state + "exp_avg must be Float and finite");
  EXPECT_EQ(with(optimizer, moments, mean, head[0].clone()),
            state + "exp_avg has a different shape; the checkpoint was saved by a different model");
  EXPECT_EQ(with(optimizer, moments, squares, -torch::ones_like(head)),
            state + "exp_avg_sq must be Float and finite, and at least 0");
  EXPECT_EQ(
      with(optimizer, moments, "another", head),
      "optimizer state: has 31 tensors, but the model needs 30; the checkpoint was saved by a "
      "different model");
  EXPECT_EQ(error_of(load), "");
}

// The last good checkpoint is kept, and what overflowed is said.
TEST_F(TrainTest, WeightsThatOverflowAreNotSaved) {
  const fs::path run = root_ / "run";
  Experiment e = experiment({"train.steps=10"});
  const auto optimizer = make_optimizer(*e.model, e.train);
  fs::create_directories(run);
  save_checkpoint(run, *e.model, *optimizer, 3);
  const std::string before = read_file(run / "model.safetensors");
  for (const double value : {NAN, INFINITY}) {
    Experiment spoiled = experiment({"train.steps=10"});
    {
      const torch::NoGradGuard no_grad;
      spoiled.model->named_parameters()["head.bias"][0] = value;
    }
    EXPECT_EQ(error_of([&] { save_checkpoint(run, *spoiled.model, *optimizer, 4); }),
              "step 4: 'head.bias' has a number that is not finite, so no checkpoint was saved; "
              "lower train.lr, or train.clip");
    EXPECT_NE(error_of([&] { evaluate(spoiled); }).find("the loss is not finite"),
              std::string::npos);
  }
  EXPECT_EQ(read_file(run / "model.safetensors"), before);
  EXPECT_EQ(load_weights(run, *e.model), 3);

  // In a run: the step takes the weights beyond float32, and is the last.
  Experiment far = experiment({"train.steps=1", "train.lr=1e39", "train.warmup=0"});
  EXPECT_TRUE(error_of([&] { train(far, root_ / "far", false, true); }).starts_with("step 1: '"));
  EXPECT_FALSE(fs::exists(root_ / "far" / "state.json"));
}

// A file of a pattern or a text that changed is another experiment.
TEST_F(TrainTest, ARunKnowsWhatItRead) {
  const fs::path dag = root_ / "p.mtx", text = root_ / "text", run = root_ / "run";
  const auto matrix = [](const std::string& entries) {
    return "%%MatrixMarket matrix coordinate pattern general\n12 12 2\n" + entries;
  };
  const std::string pattern = "model.blocks.0.pattern=dag(" + dag.string() + ")|window(1)";
  write_file(dag, matrix("5 1\n9 3\n"));
  Experiment e = experiment({pattern, "train.steps=10"});
  train(e, run, false, true);
  const std::string recorded = read_file(run / "inputs.json");
  const auto resume = [&] {
    Experiment again = experiment({pattern, "train.steps=10"});
    train(again, run, true, true);
  };
  const auto evaluated = [&] {
    Experiment again = experiment({pattern, "train.steps=10"});
    return load_run(run, again);
  };
  EXPECT_EQ(error_of(resume), "");
  EXPECT_EQ(evaluated(), 10);
  write_file(dag, matrix("5 1\n9 4\n"));
  const std::string changed = "model.blocks.0.pattern = 'dag(" + dag.string() +
                              ")|window(1)' has changed since '" + run.string() + "' was started: ";
  EXPECT_TRUE(error_of(resume).starts_with("cannot resume, " + changed)) << error_of(resume);
  EXPECT_TRUE(error_of(evaluated).starts_with(changed + "it had 65 bytes with hash "))
      << error_of(evaluated);
  write_file(dag, matrix("5 1\n9 3\n"));
  EXPECT_EQ(error_of(resume), "");
  EXPECT_EQ(read_file(run / "inputs.json"), recorded);
  // Evaluated with another pattern on purpose.
  Experiment other = experiment({"model.blocks.0.pattern=window(3)", "train.steps=10"});
  EXPECT_EQ(load_run(run, other), 10);

  const auto of_text = [&](const std::string& path) {
    return experiment({"task={name='text', path='" + path + "', length=24}", "train.steps=10"});
  };
  write_file(text, std::string(3000, 'a'));
  Experiment first = of_text(text);
  train(first, root_ / "run of text", false, true);
  write_file(text, std::string(2999, 'a') + "b");
  Experiment second = of_text(text);
  const std::string message = "task.path = '" + text.string() + "' has changed since '" +
                              (root_ / "run of text").string() + "' was started: it had 3000 bytes";
  EXPECT_TRUE(error_of([&] { load_run(root_ / "run of text", second); }).starts_with(message));
  EXPECT_TRUE(error_of([&] {
                train(second, root_ / "run of text", true, true);
              }).starts_with("cannot resume, " + message));
  fs::copy(text, root_ / "moved");
  Experiment moved = of_text(root_ / "moved");
  EXPECT_EQ(load_run(root_ / "run of text", moved), 10) << "another text, on purpose";
}

TEST_F(TrainTest, ARunThatTookNoStepIsStartedAgain) {
  const fs::path run = root_ / "run";
  // Refused before it makes anything.
  Experiment e = experiment({"model.max_length=4"});
  EXPECT_NE(error_of([&] { train(e, run, false, true); }).find("model.max_length"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(run));
  // Killed or refused right after: the mended command trains.
  const toml::table resolved = experiment({"train.batch=9"}).config;
  fs::create_directories(run);
  write_file(run / "config.toml", config::to_string(resolved));
  write_file(run / "metrics.jsonl", "");
  write_file(run / "inputs.json", "{}");
  write_file(run / "model.safetensors.next.tmp", "half");
  Experiment mended = experiment({"train.steps=2"});
  EXPECT_EQ(error_of([&] { train(mended, run, false, true); }), "");
  EXPECT_EQ(std::distance(fs::directory_iterator(run), fs::directory_iterator()), 5);
  // A config that somebody wrote, other files, or a step that was recorded: left alone.
  for (const auto& [name, bytes] :
       std::map<std::string, std::string>{{"config.toml", "# mine\n" + config::to_string(resolved)},
                                          {"notes", "x"},
                                          {"metrics.jsonl", "{\"step\":1}\n"}}) {
    fs::remove_all(run);
    fs::create_directories(run);
    write_file(run / "config.toml", config::to_string(resolved));
    write_file(run / name, bytes);
    EXPECT_NE(error_of([&] { train(mended, run, false, true); }).find("exists: use --resume"),
              std::string::npos)
        << name;
    EXPECT_EQ(read_file(run / name), bytes);
  }
}

TEST_F(TrainTest, ARunThatExistsIsKept) {
  const fs::path run = root_ / "run";
  Experiment e = experiment({"train.steps=2"});
  train(e, run, false, true);
  EXPECT_NE(
      error_of([&] { train(e, run, false, true); }).find("exists: use --resume to continue it"),
      std::string::npos);
  Experiment longer = experiment({"train.steps=3"});
  EXPECT_NE(error_of([&] { train(longer, run, true, true); }).find("train.steps: 2 in"),
            std::string::npos);
}

TEST_F(TrainTest, OneProcessTrainsARunAtATime) {
  const fs::path run = root_ / "run";
  Experiment e = experiment({"train.steps=2"});
  train(e, run, false, true);
  const auto resume = [&] { train(e, run, true, true); };
  {
    const RunLock other(run);
    EXPECT_EQ(error_of(resume), "'" + run.string() + "' is in use: another process is training it");
  }
  EXPECT_EQ(error_of(resume), "");
}

TEST_F(TrainTest, MetricsAreKeptUpToTheStepOrTheFirstDamage) {
  const fs::path file = root_ / "metrics.jsonl";
  const std::string one = "{\"step\":1}\n", two = "{\"step\":2}\n";
  for (const char* rest :
       {"{\"step\":3}\n", "{\"step\":\"2\"}\n", "{\"step\":null}\n", "{\"loss\":2}\n",
        "{\"step\":2,\"eval\":{}}\n", "[2]\n", "{\"step\":2", ""}) {
    write_file(file, one + two + rest);
    EXPECT_EQ(error_of([&] { MetricsFile(file, 2).write({{"step", 3}}); }), "") << rest;
    EXPECT_EQ(read_file(file), one + two + "{\"step\":3}\n") << rest;
  }
}

TEST_F(TrainTest, OfTwoProcessesThatMakeARunOneDoes) {
  const fs::path run = root_ / "run";
  fs::create_directories(run);  // both processes do this first
  Experiment e = experiment({"train.steps=2"});
  {
    const RunLock other(run);
    EXPECT_EQ(error_of([&] { train(e, run, false, true); }),
              "'" + run.string() + "' is in use: another process is training it");
    EXPECT_TRUE(fs::is_empty(run));
  }
  EXPECT_EQ(error_of([&] { train(e, run, false, true); }), "");
}

// The reference: torch::optim and torch::nn::utils, parameter by parameter.
TEST_F(TrainTest, StepsAreThoseOfAdamW) {
  Experiment e = experiment({"train.weight_decay=0.1", "train.lr=0.05"});
  Experiment other = experiment({"train.weight_decay=0.1", "train.lr=0.05"});
  const auto optimizer = make_optimizer(*e.model, e.train);
  const auto plain = make_optimizer(*other.model, other.train);
  const std::vector<torch::Tensor> own = e.model->parameters(), theirs = other.model->parameters();
  for (int step = 0; step < 5; ++step) {
    for (size_t i = 0; i < own.size(); ++i) {
      if (step == 2 && i == 1) {  // one that a step leaves out
        own[i].mutable_grad() = theirs[i].mutable_grad() = torch::Tensor();
        continue;
      }
      own[i].mutable_grad() = torch::randn_like(own[i]);
      theirs[i].mutable_grad() = own[i].grad().clone();
    }
    const double limit = step == 3 ? 1e9 : 1.0;
    const double norm = clip_gradients(*optimizer, limit);
    EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(theirs, limit), 1e-5 * norm);
    take_step(*optimizer);
    plain->step();
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_TRUE(torch::allclose(own[i], theirs[i], 1e-5, 1e-6)) << step << " " << i;
    }
  }
  const auto moments = optimizer_state(*optimizer, *e.model);
  for (const auto& [name, expected] : optimizer_state(*plain, *other.model)) {
    EXPECT_TRUE(torch::allclose(moments.at(name), expected, 1e-5, 1e-7)) << name;
  }
}

TEST_F(TrainTest, DecayTouchesMatricesOnly) {
  Experiment e = experiment({"train.weight_decay=0.5", "train.lr=0.1"});
  const auto optimizer = make_optimizer(*e.model, e.train);
  std::map<std::string, torch::Tensor> before;
  for (const auto& item : e.model->named_parameters()) {
    before[item.key()] = item.value().detach().clone();
    item.value().mutable_grad() = torch::zeros_like(item.value());
  }
  take_step(*optimizer);
  for (const auto& item : e.model->named_parameters()) {
    const double factor = item.value().dim() >= 2 ? 1 - 0.1 * 0.5 : 1.0;
    EXPECT_TRUE(torch::allclose(item.value(), before[item.key()] * factor)) << item.key();
  }
}

TEST_F(TrainTest, Bfloat16TrainsWithFloat32Weights) {
  for (const std::string mixer :
       {"attention", "glr", "gated_linear_recurrence", "local_attention"}) {
    Experiment e =
        experiment({"train.precision=bfloat16", "model.blocks=[{mixer='" + mixer + "'}]"});
    Experiment wide = experiment({"model.blocks=[{mixer='" + mixer + "'}]"});
    const TrainResult a = train(e, root_ / (mixer + "-16"), false, true);
    const TrainResult b = train(wide, root_ / (mixer + "-32"), false, true);
    EXPECT_NEAR(a.score.loss(), b.score.loss(), 0.05) << mixer;
    EXPECT_NE(a.score.loss(), b.score.loss()) << mixer << ": autocast changed nothing";
    for (const torch::Tensor& p : e.model->parameters())
      EXPECT_EQ(p.scalar_type(), torch::kFloat32);
  }
}

// Uses rows of two pieces and documents of all lengths.
TEST_F(TrainTest, EveryMixerTrainsInBfloat16) {
  std::string text;
  for (int i = 0; i < 300; ++i)
    text += std::string(1 + i * 37 % 100, static_cast<char>('a' + i % 5)) + "\n";
  write_file(root_ / "text", text);
  for (const nn::MixerEntry& entry : nn::mixers()) {
    const std::string mixer = "mixer='" + entry.name + "'";
    const std::string blocks = entry.reads_mem
                                   ? "[{mixer='attention', mem='m'}, {" + mixer + ", mem='m'}]"
                                   : "[{" + mixer + "}]";
    for (const std::string documents : {"none', ", "separated', separator=\"\\n\", "}) {
      std::map<std::string, double> losses;
      for (const std::string precision : {"float32", "bfloat16"}) {
        Experiment e = experiment({"task={name='text', documents='" + documents +
                                       "length=100, path='" + (root_ / "text").string() + "'}",
                                   "train.precision=" + precision, "model.blocks=" + blocks,
                                   "model.positions=rope"});
        const auto optimizer = make_optimizer(*e.model, e.train);
        losses[precision] = train_step(e, *optimizer, 0).scored.loss.item<double>();
      }
      EXPECT_NEAR(losses["bfloat16"], losses["float32"], 0.05) << entry.name << " " << documents;
      EXPECT_NE(losses["bfloat16"], losses["float32"]) << entry.name;
    }
  }
}

TEST(Schedule, WarmsUpThenFallsAsACosine) {
  TrainConfig c;
  c.steps = 100;
  c.warmup = 20;
  c.lr = 1.0;
  EXPECT_DOUBLE_EQ(learning_rate(c, 0), 0.05);
  EXPECT_DOUBLE_EQ(learning_rate(c, 9), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(c, 19), 1.0) << "the warm-up reaches the rate";
  EXPECT_DOUBLE_EQ(learning_rate(c, 20), 1.0) << "and the cosine starts there";
  EXPECT_NEAR(learning_rate(c, 40), 0.5 + std::sqrt(0.125), 1e-12);
  EXPECT_NEAR(learning_rate(c, 60), 0.5, 1e-12) << "half of the 80 steps after it";
  EXPECT_GT(learning_rate(c, 99), 0);
  EXPECT_LT(learning_rate(c, 99), 1e-3);
  c.warmup = 0;
  EXPECT_DOUBLE_EQ(learning_rate(c, 0), 1.0);
  EXPECT_NEAR(learning_rate(c, 50), 0.5, 1e-12);
  for (const int64_t warmup : {100, 200}) {  // it never ends
    c.warmup = warmup;
    EXPECT_DOUBLE_EQ(learning_rate(c, 99), 100.0 / static_cast<double>(warmup));
  }
  c.lr = 0.01;
  c.steps = 20;
  c.warmup = 10;
  double most = 0;
  for (int64_t step = 0; step < 20; ++step) most = std::max(most, learning_rate(c, step));
  EXPECT_DOUBLE_EQ(most, 0.01);
}

TEST(Score, CountsOnlyWhatIsAsked) {
  tasks::Batch batch;
  batch.tokens = torch::zeros({1, 4}, torch::kInt64);
  batch.targets = torch::tensor({{1, -100, 0, 2}}, torch::kInt64);
  batch.slices = torch::tensor({{0, -1, 1, 1}}, torch::kInt64);
  const torch::Tensor rows = asked_rows(batch);
  EXPECT_TRUE(rows.equal(torch::tensor({0, 2, 3}, torch::kInt64)));
  const torch::Tensor logits = torch::tensor({{0.f, 9.f, 0.f}, {9.f, 0.f, 0.f}, {9.f, 0.f, 0.f}});
  const torch::Tensor losses =
      torch::cross_entropy_loss(logits, asked_targets(batch, rows), {}, at::Reduction::None);
  const nn::Scored scored = {losses.mean(), losses, logits.argmax(-1)};
  EXPECT_FALSE(row_weights(batch, rows).has_value());
  Score score;
  add_batch(scored, batch, rows, score);
  EXPECT_EQ(score.all.asked, 3);
  EXPECT_EQ(score.all.right, 2);
  EXPECT_EQ(score.slices[0].percent(), 100.0);
  EXPECT_EQ(score.slices[1].percent(), 50.0);
  const double right = std::log(1 + 2 * std::exp(-9.0)), wrong = 9 + right;
  EXPECT_NEAR(score.loss(), (2 * right + wrong) / 3, 1e-5);
  add_batch(scored, batch, rows, score);  // batches add up by asked tokens
  EXPECT_NEAR(score.loss(), (2 * right + wrong) / 3, 1e-5);
}

// Each readout has the same weight, however often it is asked.
TEST(Score, TrainingLossIsTheMeanOverReadouts) {
  tasks::Batch batch;
  batch.targets = torch::tensor({{{0, 1, -100}, {0, -100, -100}, {2, 2, -100}}}, torch::kInt64);
  const torch::Tensor rows = asked_rows(batch);
  ASSERT_TRUE(rows.equal(torch::tensor({0, 1, 3, 6, 7}, torch::kInt64)));
  torch::manual_seed(0);
  const torch::Tensor logits = torch::randn({5, 3});
  const auto mean = [&](const std::vector<int64_t>& of, const std::vector<int64_t>& targets) {
    const torch::Tensor some = logits.index_select(0, torch::tensor(of, torch::kInt64));
    return torch::cross_entropy_loss(some, torch::tensor(targets, torch::kInt64)).item<double>();
  };
  const double expected = (mean({0, 2, 3}, {0, 0, 2}) + mean({1, 4}, {1, 2})) / 2;
  const torch::Tensor losses =
      torch::cross_entropy_loss(logits, asked_targets(batch, rows), {}, at::Reduction::None);
  EXPECT_NEAR((losses * row_weights(batch, rows).value()).sum().item<double>(), expected, 1e-6);
  EXPECT_GT(std::abs(losses.mean().item<double>() - expected), 1e-3);
}

TEST(Experiment, UnknownKeysAreErrors) {
  const auto message = [](const std::string& extra) {
    try {
      toml::table document = config::parse(
          "[task]\nname='copy'\nm=4\n[model]\nwidth=8\nblocks=[{mixer='attention'}]\n[train]"
          "\nsteps=1\n",
          "test");
      config::set(document, extra);
      make_experiment(std::move(document));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message("train.steps=2"), "");
  EXPECT_EQ(message("train.step=2"), "unknown key 'train.step'; did you mean 'steps'?");
  EXPECT_EQ(message("sed=2"), "unknown key 'sed'; did you mean 'seed'?");
  EXPECT_EQ(message("task.mm=2"), "unknown key 'task.mm'; did you mean 'm'?");
  EXPECT_EQ(message("train.lr=0"), "train.lr = 0: must be above 0");
  EXPECT_EQ(message("train.beta1=1"), "train.beta1 = 1: must be in [0, 1)");
  EXPECT_EQ(message("device=cuda"), "device = 'cuda': must be cpu; no other backend is built");
  EXPECT_EQ(message("train.precision=float16").substr(0, 61),
            "train.precision = 'float16': must be one of float32, bfloat16");
}

TEST(Experiment, DataOfAStepDependsOnSeedStreamAndStepAlone) {
  EXPECT_EQ(batch_seed(1, "train", 5), batch_seed(1, "train", 5));
  std::set<uint64_t> seen;
  for (const int64_t seed : {0, 1, 2}) {
    for (const char* stream : {"train", "eval"}) {
      for (int64_t step = 0; step < 100; ++step) seen.insert(batch_seed(seed, stream, step));
    }
  }
  EXPECT_EQ(seen.size(), 600u);
}

}  // namespace
}  // namespace hopmix::train
