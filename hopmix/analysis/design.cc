#include "hopmix/analysis/design.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "hopmix/analysis/cost.h"
#include "hopmix/analysis/hops.h"
#include "hopmix/analysis/offset_scorer.h"
#include "hopmix/analysis/pareto.h"
#include "hopmix/analysis/random.h"
#include "hopmix/analysis/routing_bounds.h"
#include "hopmix/base/error.h"

namespace hopmix {
namespace {

constexpr int64_t kMostReads = 64;  // the search stops there
constexpr int64_t kMostTokens = 8192;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Offsets = std::vector<int64_t>;  // ascending

/// A candidate: offsets(plain) | cached(offsets(lattice)); either may be empty.
struct Genome {
  Offsets plain, lattice;
};

struct Cell {
  int64_t reads, cache;
  auto operator<=>(const Cell&) const = default;
};

enum class Family { kPlain, kLattice, kMixed };

std::string offsets_spec(const Offsets& offsets) {
  std::string spec = "offsets(";
  for (const int64_t f : offsets) spec += std::to_string(f) + ",";
  spec.back() = ')';
  return spec;
}

std::string to_spec(const Genome& genome) {
  if (genome.lattice.empty()) return offsets_spec(genome.plain);
  const std::string lattice = "cached(" + offsets_spec(genome.lattice) + ")";
  return genome.plain.empty() ? lattice : offsets_spec(genome.plain) + "|" + lattice;
}

// The objective of one genome in a cell; infinite if it exceeds the limits or leaves a pair without
// a path.
class Scorer {
 public:
  Scorer(int64_t n, Objective objective) : n_(n), objective_(objective), offsets_(n) {}

  double score(const Genome& genome, const Cell& cell) {
    ++evaluations_;
    if (genome.lattice.empty()) {
      const Offsets& f = genome.plain;
      if (static_cast<int64_t>(f.size()) > cell.reads) return kInfinity;
      if (offsets_.cache_peak(f) > cell.cache) return kInfinity;
      const double mean = offsets_.mean_hops(f);
      if (objective_ == Objective::kHops || !std::isfinite(mean)) return mean;
      const int64_t inputs = n_ / 2;
      const double distance = (hops_by_distance(f, inputs + 1)[inputs] + 1) / 2.0;
      return congestion_like(distance, {to_csr(Pattern(to_spec(genome), n_)), inputs}, mean);
    }
    Csr rows = to_csr(Pattern(to_spec(genome), n_));
    const Cost spent = cost(rows);
    if (spent.reads_max > cell.reads || spent.cache_peak > cell.cache) return kInfinity;
    const double mean = hops(rows).mean.value_or(kInfinity);
    if (objective_ == Objective::kHops || !std::isfinite(mean)) return mean;
    const CopyProblem problem{std::move(rows), n_ / 2};
    return congestion_like(distance_bound(problem).bound, problem, mean);
  }

  int64_t evaluations() const { return evaluations_; }

 private:
  // The bounds on congestion, which are cheap. Hops, with a small weight, break ties.
  static double congestion_like(double distance, const CopyProblem& problem, double mean_hops) {
    return std::max(distance, cut_bound(problem)) + 0.01 * mean_hops;
  }

  int64_t n_;
  Objective objective_;
  OffsetScorer offsets_;
  int64_t evaluations_ = 0;
};

// 1 .. most, each power of two as likely as the next.
int64_t log_uniform(std::mt19937_64& random, int64_t most) {
  const double x = std::exp(unit(random) * std::log(static_cast<double>(most) + 1));
  return std::clamp<int64_t>(static_cast<int64_t>(x), 1, most);
}

void insert(Offsets& offsets, int64_t f) {
  const auto at = std::lower_bound(offsets.begin(), offsets.end(), f);
  if (at == offsets.end() || *at != f) offsets.insert(at, f);
}

// Changes one of `offsets`, but keeps 1, so that every token is reached. At most `count` offsets,
// none above `most`.
void mutate(Offsets& offsets, int64_t count, int64_t most, std::mt19937_64& random) {
  const auto size = static_cast<int64_t>(offsets.size());
  const double choice = unit(random);
  if (size < 2 || (choice < 0.15 && size < count)) {
    if (size < count) insert(offsets, log_uniform(random, most));
    return;
  }
  const int64_t at = 1 + below(random, size - 1), f = offsets[at];
  offsets.erase(offsets.begin() + at);
  if (choice >= 0.9) return;
  if (choice < 0.4) {
    insert(offsets, choice < 0.3 ? log_uniform(random, most) : 1 + below(random, most));
    return;
  }
  const int64_t step = log_uniform(random, std::max<int64_t>(1, f / 2));
  insert(offsets, std::clamp<int64_t>(f + (unit(random) < 0.5 ? step : -step), 1, most));
}

// round(most^(k / (count - 1))), made strictly increasing: 1 .. most.
Offsets geometric(int64_t count, int64_t most) {
  Offsets offsets = {1};
  for (int64_t k = 1; k < count; ++k) {
    const double f = std::pow(static_cast<double>(most),
                              static_cast<double>(k) / static_cast<double>(count - 1));
    const int64_t next = std::max(offsets.back() + 1, static_cast<int64_t>(std::llround(f)));
    if (next > most) break;
    offsets.push_back(next);
  }
  return offsets;
}

// c k^2 + 1, the last value at most `most`.
Offsets quadratic(int64_t count, int64_t most) {
  Offsets offsets = {1};
  const double last = static_cast<double>(std::max<int64_t>(1, count - 1));
  const double scale = std::max(1.0, static_cast<double>(most - 1) / (last * last));
  for (int64_t k = 1; k < count; ++k) {
    const auto f = static_cast<int64_t>(scale * static_cast<double>(k * k)) + 1;
    if (f <= most) insert(offsets, f);
  }
  return offsets;
}

struct Found {
  Genome genome;
  double score = kInfinity;
};

// Simulated annealing in one cell and family.
class Annealing {
 public:
  Annealing(Scorer& scorer, int64_t n, Cell cell, Family family, std::mt19937_64 random)
      : scorer_(scorer),
        cell_(cell),
        family_(family),
        // An f pattern keeps about as many tokens as its largest offset, unless that is close to n.
        most_plain_(std::min(n - 1, cell.cache >= n / 2 ? n - 1 : cell.cache)),
        most_lattice_(n - 1),
        random_(std::move(random)) {}

  // `start` is an additional start to try; for a mixed family, the lattice to begin from.
  Found run(int64_t evaluations, const Found& start, const std::function<bool()>& go_on) {
    Found now = start;
    for (const Genome& genome : starts()) consider(now, genome);
    if (!std::isfinite(now.score)) return now;
    Found best = now;
    constexpr double kHot = 0.03, kCold = 0.0005;  // temperatures, relative to the best score
    for (int64_t e = 0; e < evaluations && go_on(); ++e) {
      const double done = static_cast<double>(e) / static_cast<double>(evaluations);
      const double temperature = best.score * kHot * std::pow(kCold / kHot, done);
      Found next{mutated(now.genome), 0};
      next.score = scorer_.score(next.genome, cell_);
      const double worse = next.score - now.score;
      if (!(worse <= 0) && !(unit(random_) < std::exp(-worse / temperature))) continue;
      now = next;
      if (now.score < best.score) best = now;
    }
    prune(best);
    return best;
  }

 private:
  // Drops offsets that gain nothing, such as those that always round to the token of another.
  void prune(Found& best) {
    for (Offsets Genome::*part : {&Genome::plain, &Genome::lattice}) {
      for (size_t k = (best.genome.*part).size(); k-- > 0;) {
        Found less = best;
        (less.genome.*part).erase((less.genome.*part).begin() + static_cast<int64_t>(k));
        const Offsets& lattice = less.genome.lattice;
        if (lattice.empty() ? less.genome.plain.empty() : lattice[0] != 1) continue;
        less.score = scorer_.score(less.genome, cell_);
        if (less.score <= best.score) best = less;
      }
    }
  }

  void consider(Found& best, const Genome& genome) {
    const double score = scorer_.score(genome, cell_);
    if (score < best.score) best = {genome, score};
  }

  std::vector<Genome> starts() const {
    if (family_ == Family::kMixed) return {};
    std::vector<Genome> all;
    const int64_t most = family_ == Family::kPlain ? most_plain_ : most_lattice_;
    for (const int64_t span : {most, most / 2, most / 4}) {
      for (const Offsets& offsets : {geometric(cell_.reads, span), quadratic(cell_.reads, span)}) {
        family_ == Family::kPlain ? all.push_back({offsets, {}}) : all.push_back({{}, offsets});
      }
    }
    return all;
  }

  Genome mutated(Genome genome) {
    // A lattice may read fewer tokens than it has offsets, because reads that round to the same
    // token
    // merge.
    const int64_t room = cell_.reads + cell_.reads / 2;
    switch (family_) {
      case Family::kPlain:
        mutate(genome.plain, cell_.reads, most_plain_, random_);
        break;
      case Family::kLattice:
        mutate(genome.lattice, room, most_lattice_, random_);
        break;
      case Family::kMixed:
        if (unit(random_) < 0.5) {
          mutate(genome.plain, cell_.reads, most_plain_, random_);
        } else {
          mutate(genome.lattice, room, most_lattice_, random_);
        }
        break;
    }
    return genome;
  }

  Scorer& scorer_;
  const Cell cell_;
  const Family family_;
  const int64_t most_plain_, most_lattice_;
  std::mt19937_64 random_;
};

void check(const DesignOptions& options) {
  const auto at_least = [](const char* name, int64_t value, int64_t least) {
    if (value < least) {
      throw Error(std::string(name) + " " + std::to_string(value) + " must be at least " +
                  std::to_string(least));
    }
  };
  at_least("n", options.n, 2);
  if (options.n > kMostTokens) {
    throw Error("n " + std::to_string(options.n) + " must be at most " +
                std::to_string(kMostTokens) + ": each candidate requires a search over all pairs");
  }
  at_least("reads", options.reads.value_or(1), 1);
  at_least("cache", options.cache.value_or(1), 1);
  at_least("evaluations", options.evaluations, 1);
}

DesignPoint measure(const std::string& spec, const DesignOptions& options,
                    const std::function<bool()>& go_on) {
  const Pattern pattern(spec, options.n);
  const Cost spent = cost(pattern);
  const Hops reach = hops(pattern);
  DesignPoint point;
  point.spec = pattern.spec();
  point.reads = spent.reads_max;
  point.cache = spent.cache_peak;
  point.within = point.reads <= options.reads.value_or(options.n) &&
                 point.cache <= options.cache.value_or(options.n);
  point.mean_hops = reach.mean;
  point.diameter = reach.diameter;
  if (options.minimize == Objective::kCongestion) {
    CongestionOptions settings;
    settings.integral = false;
    settings.progress = [&](const CongestionProgress&) { return go_on(); };
    point.congestion = congestion(pattern, settings);
  }
  return point;
}

// The limits to search, looser ones first.
std::vector<Cell> make_cells(const DesignOptions& options,
                             const std::vector<DesignPoint>& references) {
  const int64_t most = options.n - 1;
  const Cell asked{std::min({options.reads.value_or(most), most, kMostReads}),
                   std::min(options.cache.value_or(most), most)};
  std::set<Cell> cells;
  // The cache holds at least what the next token reads.
  const auto add = [&](int64_t reads, int64_t cache) {
    cells.insert({std::min(reads, cache), cache});
  };
  for (int64_t reads = asked.reads; reads >= 1; reads /= 2) {
    for (int64_t cache = asked.cache; cache >= reads; cache /= 4) {
      add(reads, cache);
      if (!options.ladder) break;
    }
    if (!options.ladder) break;
  }
  for (const DesignPoint& point : references) {
    if (options.ladder && point.within && point.reads <= asked.reads) {
      add(point.reads, point.cache);
    }
  }
  return {cells.rbegin(), cells.rend()};
}

double objective_of(const DesignPoint& point) {
  if (point.congestion) return point.congestion->fractional.value_or(kInfinity);
  return point.mean_hops.value_or(kInfinity);
}

// A proven lower bound on a point's objective: for congestion, `proven`; infinite if there is none.
double proven_of(const DesignPoint& point) {
  if (!point.congestion) return objective_of(point);
  return point.congestion->fractional ? point.congestion->proven : kInfinity;
}

void compare_points(std::vector<DesignPoint>& points) {
  std::stable_sort(points.begin(), points.end(), [](const DesignPoint& a, const DesignPoint& b) {
    return std::make_tuple(a.reads, a.cache, objective_of(a)) <
           std::make_tuple(b.reads, b.cache, objective_of(b));
  });
  std::vector<std::vector<double>> coordinates;
  for (const DesignPoint& point : points) {
    coordinates.push_back(
        {static_cast<double>(point.reads), static_cast<double>(point.cache), objective_of(point)});
  }
  const std::vector<bool> front = pareto_front(coordinates);
  for (size_t p = 0; p < points.size(); ++p) {
    points[p].front = front[p];
    for (size_t q = 0; q < points.size(); ++q) {
      const bool beats = !points[q].reference && points[q].reads <= points[p].reads &&
                         points[q].cache <= points[p].cache &&
                         objective_of(points[q]) < proven_of(points[p]);
      const std::optional<size_t>& best = points[p].beaten_by;
      if (beats && (!best || objective_of(points[q]) < objective_of(points[*best]))) {
        points[p].beaten_by = q;
      }
    }
  }
}

}  // namespace

const std::vector<std::string>& reference_patterns() {
  static const std::vector<std::string> patterns = {
      "window(1)", "2^k", "k^2+1", "cached(2^k)", "cached(k^2+1)", "fenwick", "dense"};
  return patterns;
}

Design design(const DesignOptions& options) {
  check(options);
  Design design;
  DesignProgress progress;
  const auto go_on = [&] {
    if (!design.stopped && options.progress && !options.progress(progress)) design.stopped = true;
    return !design.stopped;
  };
  for (const std::string& spec : reference_patterns()) {
    DesignPoint point = measure(spec, options, go_on);
    point.reference = true;
    design.points.push_back(point);
  }
  const std::vector<Cell> cells = make_cells(options, design.points);
  progress.cells = static_cast<int64_t>(cells.size());
  Scorer scorer(options.n, options.minimize);
  std::set<std::string> known(reference_patterns().begin(), reference_patterns().end());
  const auto keep = [&](const Found& found) {
    if (!std::isfinite(found.score)) return;
    progress.best = to_spec(found.genome);
    if (known.insert(progress.best).second) {
      design.points.push_back(measure(progress.best, options, go_on));
    }
  };
  for (const Cell& cell : cells) {
    if (!go_on()) break;
    // Each cell has its own random numbers, so its result does not depend on the other cells.
    const auto anneal = [&](Family family, int64_t evaluations, const Found& start) {
      std::seed_seq seeds{static_cast<int64_t>(options.seed >> 32),
                          static_cast<int64_t>(options.seed & 0xffffffff), cell.reads, cell.cache,
                          static_cast<int64_t>(family)};
      return Annealing(scorer, options.n, cell, family, std::mt19937_64(seeds))
          .run(evaluations, start, go_on);
    };
    const Found plain = anneal(Family::kPlain, options.evaluations * kOffsetsFactor, Found{});
    keep(plain);
    const Found lattice = anneal(Family::kLattice, options.evaluations, Found{});
    keep(lattice);
    if (cell.cache > cell.reads && std::isfinite(lattice.score)) {
      keep(anneal(Family::kMixed, options.evaluations,
                  {{{1}, lattice.genome.lattice}, lattice.score}));
    }
    ++progress.cell;
  }
  go_on();
  design.evaluations = scorer.evaluations();
  compare_points(design.points);
  return design;
}

}  // namespace hopmix
