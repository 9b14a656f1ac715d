// Decay by one number per token and key channel: the products of readers (queries) with keys,
// computed by halves of the chunk ("Decays of channels" in README.md).
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "hopmix/kernels/chunked/chunked_heads.h"
#include "hopmix/kernels/chunked/decay_tree_loops.h"

namespace hopmix::kernels {

template <typename A, typename O>
class DecayTree {
 public:
  /// Tiles [n, keys]; null for an absent reader, and then for all later ones. A reader that also
  /// reads its own token has `own`.
  struct Reader {
    const A* x = nullptr;
    bool own = true;
  };
  static constexpr int64_t kMost = 2;  // readers
  using Readers = std::array<Reader, kMost>;

  /// For chunks of up to `rows` tokens and `readers` readers; `keep` stores every level, for
  /// descend().
  DecayTree(int64_t rows, int64_t keys, int64_t readers, bool keep)
      : keys_(keys),
        stride_(keep ? rows * keys : 0),
        q_{Memory(rows * keys + kLevels * stride_),
           Memory(readers > 1 ? rows * keys + kLevels * stride_ : 0)},
        k_levels_(rows * keys + kLevels * stride_),
        decays_(rows * keys + kLevels * stride_),
        sums_(rows * keys),
        all_(keys),
        a_{Memory(rows * rows), Memory(readers > 1 ? rows * rows : 0)},
        block_(kSmall * kSmall),
        left_(rows * keys),
        right_(rows * keys, /*transposes=*/true) {
    if (keep) back_.emplace(rows, keys);
  }

  /// g [n, keys] are the log decays. Without readers, only late() and all() are available.
  void climb(int64_t n, const A* g, const Readers& readers, const A* k) {
    n_ = n;
    k_ = k;
    readers_ = readers;
    count_ = 0;
    top_ = 0;
    while (count_ < kMost && readers[count_].x != nullptr) ++count_;
    if (count_ == 0) {
      tree_.behind(n, keys_, g, k, k_levels_.data(), all_.data());
      return;
    }
    const int64_t size = n * keys_;
    std::copy_n(g, size, sums_.data());
    tree_.powers(g, size, decays_at(0));
    for (int64_t r = 0; r < count_; ++r) {
      A *a = a_[r].data(), *q = q_at(r, 0);
      const A *x = readers[r].x, *decays = decays_at(0);
      std::fill_n(a, n * n, A{0});
      for (int64_t i = 0; readers[r].own && i < n; ++i) {
        loops_.row_dots(x + i * keys_, k + i * keys_, 1, keys_, a + i * n + i);
      }
#pragma omp simd
      for (int64_t c = 0; c < size; ++c) q[c] = decays[c] * x[c];
    }
    std::copy_n(k, size, k_at(0));
    for (int64_t h = 1; h < n; h *= 2, ++top_) {
      make_level(h);
      if (h > 1) tree_.powers(sums_.data(), (n + h - 1) / h * keys_, decays_at(top_));
      for (int64_t r = 0; r < count_; ++r) {
        tree_.join_readers(n, keys_, h, q_at(r, top_), decays_at(top_), q_at(r, top_ + 1));
      }
      tree_.join_keys(n, keys_, h, k_at(top_), decays_at(top_), k_at(top_ + 1));
      tree_.join_sums(n, keys_, h, sums_.data());
    }
    tree_.powers(sums_.data(), keys_, all_.data());
  }

  /// P x of a reader, and R k, of the whole chunk; and its decay.
  const A* early(int64_t reader) const { return q_at(reader, top_); }
  const A* late() const { return k_at(top_); }
  const A* all() const { return all_.data(); }

  /// A [n, n] of a reader; 0 where it does not see the key.
  const A* scores(int64_t reader) const { return a_[reader].data(); }

  /// Gradients, after climb() with readers: from d_early of each reader, d_late and d_all [keys]
  /// (of all()), and d_scores of each (rows are keys), computes those of the readers and of k, in
  /// place. Returns that of g.
  const A* descend(const std::array<const A*, kMost>& d_scores,
                   const std::array<A*, kMost>& d_early, A* d_late, const A* d_all) {
    Backward& b = *back_;
    std::array<const O*, kMost> d_a{}, d_a_transposed{};
    for (int64_t r = 0; r < count_; ++r) {
      pack_columns<A>(d_scores[r], n_, n_, b.turned[r].data(), n_);
      d_a[r] = b.d_a[r].left(b.turned[r].data(), n_, n_);
      d_a_transposed[r] = b.d_a_transposed[r].left(d_scores[r], n_, n_);
    }
    A *e = b.e.data(), *e2 = b.e2.data();
    for (int64_t c = 0; c < keys_; ++c) e[c] = d_all[c] * all_.data()[c];
    for (int64_t level = top_ - 1; level >= 0; --level) {
      const int64_t h = int64_t{1} << level;
      std::swap(e, e2);
      const A* decays = decays_at(level);
      tree_.spread(n_, keys_, h, e2, e);
      for (int64_t r = 0; r < count_; ++r) {
        tree_.part_readers(n_, keys_, h, q_at(r, level + 1), decays, d_early[r], e);
      }
      tree_.part_keys(n_, keys_, h, k_at(level + 1), decays, d_late, e);
      const O* k = right_.right(k_at(level), n_, keys_);
      for (int64_t r = 0; r < count_; ++r) apply_level(h, /*to_right=*/true, d_a[r], k, d_early[r]);
      for (int64_t r = 0; r < count_; ++r) {
        apply_level(h, /*to_right=*/false, d_a_transposed[r],
                    right_.right(q_at(r, level), n_, keys_), d_late);
      }
    }
    A own[kChunk];
    for (int64_t r = 0; r < count_; ++r) {
      tree_.leaves(n_, keys_, q_at(r, 0), decays_at(0), d_early[r], e);
      if (!readers_[r].own) continue;
      for (int64_t i = 0; i < n_; ++i) own[i] = d_scores[r][i * n_ + i];
      tree_.add_rows(n_, keys_, own, k_, d_early[r]);
      tree_.add_rows(n_, keys_, own, readers_[r].x, d_late);
    }
    return e;
  }

 private:
  static constexpr int64_t kLevels = 6;  // kChunk = 2^kLevels
  static constexpr int64_t kSmall = kTileLanes;
  static_assert(kChunk == int64_t{1} << kLevels);
  using Memory = Buffer<A>;

  // Additional memory for descend().
  struct Backward {
    Backward(int64_t rows, int64_t keys)
        : e(rows * keys),
          e2(rows * keys),
          turned{Memory(rows * rows), Memory(rows * rows)},
          level(rows * kSmall),
          d_a{Operand<O, A>(rows * rows), Operand<O, A>(rows * rows)},
          d_a_transposed{Operand<O, A>(rows * rows), Operand<O, A>(rows * rows)} {}
    Memory e, e2;
    std::array<Memory, kMost> turned;
    Buffer<O> level;
    std::array<Operand<O, A>, kMost> d_a, d_a_transposed;
  };

  A* q_at(int64_t reader, int64_t level) const { return q_[reader].data() + level * stride_; }
  A* k_at(int64_t level) const { return k_levels_.data() + level * stride_; }
  A* decays_at(int64_t level) const { return decays_.data() + level * stride_; }

  // Calls f(first of L, first of R, end of R) for neighbouring blocks of h tokens in [begin, end).
  template <typename F>
  static void for_neighbours(int64_t begin, int64_t end, int64_t h, const F& f) {
    for (int64_t i = begin; i + h < end; i += 2 * h) f(i, i + h, std::min(i + 2 * h, end));
  }

  // A for pairs in neighbouring blocks of h tokens. Small blocks are computed as whole squares on
  // the diagonal, because a product of few rows costs as much.
  void make_level(int64_t h) {
    const O* k = right_.right_transposed(k_at(top_), n_, keys_);
    for (int64_t r = 0; r < count_; ++r) {
      make_level(h, left_.left(q_at(r, top_), n_, keys_), k, a_[r].data());
    }
  }
  void make_level(int64_t h, const O* q, const O* k, A* a) const {
    if (h >= kSmall) {
      for_neighbours(0, n_, h, [&](int64_t left, int64_t right, int64_t end) {
        multiply<O>(end - right, h, keys_, q + right * keys_, keys_,
                    k + right_index<O>(0, left, n_), n_, a + right * n_ + left, n_,
                    /*add=*/false);
      });
      return;
    }
    for (int64_t i = 0; i < n_; i += kSmall) {
      multiply<O>(kSmall, kSmall, keys_, q + i * keys_, keys_, k + right_index<O>(0, i, n_), n_,
                  block_.data(), kSmall, /*add=*/false);
      for_neighbours(0, kSmall, h, [&](int64_t left, int64_t right, int64_t end) {
        for (int64_t t = right; t < end; ++t) {
          std::copy_n(block_.data() + t * kSmall + left, h, a + (i + t) * n_ + i + left);
        }
      });
    }
  }

  // out += w x, using the entries of w [n, n] for pairs in neighbouring blocks of h tokens: rows in
  // R and columns in L, or the reverse. x [n, keys] is a right factor.
  void apply_level(int64_t h, bool to_right, const O* w, const O* x, A* out) const {
    if (h >= kSmall) {
      for_neighbours(0, n_, h, [&](int64_t left, int64_t right, int64_t end) {
        const int64_t row = to_right ? right : left, column = to_right ? left : right;
        const int64_t rows = to_right ? end - right : h, columns = to_right ? h : end - right;
        multiply<O>(rows, keys_, columns, w + row * n_ + column, n_,
                    x + right_index<O>(column, 0, keys_), keys_, out + row * keys_, keys_,
                    /*add=*/true);
      });
      return;
    }
    for (int64_t i = 0; i < n_; i += kSmall) {
      O* square = back_->level.data() + i * kSmall;
      std::fill_n(square, kSmall * kSmall, O{});
      for_neighbours(0, kSmall, h, [&](int64_t left, int64_t right, int64_t) {
        const int64_t row = to_right ? right : left, column = to_right ? left : right;
        for (int64_t t = row; t < row + h; ++t) {
          std::copy_n(w + (i + t) * n_ + i + column, h, square + t * kSmall + column);
        }
      });
      multiply<O>(kSmall, keys_, kSmall, square, kSmall, x + right_index<O>(i, 0, keys_), keys_,
                  out + i * keys_, keys_, /*add=*/true);
    }
  }

  int64_t keys_, n_ = 0, top_ = 0, count_ = 0;
  int64_t stride_;  // from level to level
  Readers readers_{};
  const A* k_ = nullptr;
  std::array<Memory, kMost> q_;
  Memory k_levels_, decays_, sums_, all_;
  std::array<Memory, kMost> a_;
  Memory block_;
  Operand<O, A> left_, right_;
  std::optional<Backward> back_;
  const ChunkLoops<A> loops_ = chunk_loops<A>();
  const DecayTreeLoops<A> tree_ = decay_tree_loops<A>();
};

}  // namespace hopmix::kernels
