// Recurrences with a matrix state, chunk by chunk: loops over all heads and sequences of a call,
// threads, grouped queries, loading and storing tiles, and passing states from chunk to chunk.
//
// The computation of one operator in a chunk is its Rule, constructed for a few heads of a
// sequence, which it is given chunk by chunk in turn (so its members are scratch). States are
// [keys(), values()] in A, 0 in the padding. A Rule has
//
//   forward(chunk, tiles, state)           computes tiles.o; turns the state before the chunk into
//                                          the one after it
//   advance(chunk, tiles, state)           the same without o and q, which are null
//   backward(chunk, tiles, state, d, d_state)
//                                          computes d.q, d.k and d.v from the state before the
//                                          chunk and d.o; turns the gradient of the state after the
//                                          chunk into that of the state before it
//
// and writes the gradients of the operator's other inputs itself. The backward stores the states
// between the chunks of its heads, T / kChunk of them for each, which it recomputes. A Rule with
// kOwnStates has one head, stores its states itself, receives null, and has no state before the
// first token. Then advance() is called for all chunks except the last, and backward() from the
// last to the first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hopmix/kernels/base/index.h"
#include "hopmix/kernels/base/operands.h"
#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/chunked/chunk_loops.h"
#include "hopmix/kernels/chunked/matrix_state.h"
#include "hopmix/kernels/decode/matrix_step.h"

namespace hopmix::kernels {

/// Tokens of a chunk.
inline constexpr int64_t kChunk = 64;

/// Tokens [token, token + length), counted over batch and time, of one query head.
struct Chunk {
  int64_t token, length, head, kv_head;
  bool last;  // of its sequence

  /// The number of rows of its tiles; rows past `length` are 0.
  int64_t rows() const { return padded(length); }
};

/// q and k [rows, keys()], q times the scale; v and o [rows, values()]. Zero-padded, except for o.
template <typename A>
struct ChunkTiles {
  const A *q, *k, *v;
  A* o;
};

/// `o` is an input; the others are outputs, or null if not wanted. d.q is for the scaled q.
template <typename A>
struct ChunkGradients {
  const A* o;
  A *q, *k, *v;
};

/// The sizes of a call.
struct ChunkedSizes {
  int64_t heads, kv_heads, key_width, value_width;
  const Sequences& sequences;
  int64_t longest;  // of the sequences

  template <typename T>
  explicit ChunkedSizes(const MatrixStateInputs<T>& in)
      : heads(in.heads),
        kv_heads(in.kv_heads),
        key_width(in.key_width),
        value_width(in.value_width),
        sequences(in.sequences),
        longest(in.sequences.longest()) {}

  int64_t group() const { return heads / kv_heads; }
  int64_t keys() const { return padded(key_width); }
  int64_t values() const { return padded(value_width); }
  int64_t state_size() const { return keys() * values(); }
  /// Whether states have no padding.
  bool whole() const { return keys() == key_width && values() == value_width; }
  int64_t entries() const { return sequences.tokens() * heads * (key_width + value_width); }
  /// Rows of the largest chunk.
  int64_t rows() const { return padded(std::min(kChunk, longest)); }

  /// Offset of a sequence's state of one head in [N,H,DK,DV].
  int64_t state_offset(int64_t sequence, int64_t head) const {
    return (sequence * heads + head) * key_width * value_width;
  }
};

/// Whether a Rule stores its states itself.
template <typename MakeRule>
inline constexpr bool kOwnStates = requires {
  std::invoke_result_t<MakeRule>::kOwnStates;
};

/// The location of a chunk's rows of one head in a tensor [tokens, heads, width].
struct HeadRows {
  int64_t heads, head, width;

  int64_t first(const Chunk& chunk) const { return head_offset(chunk.token, heads, head, width); }
  int64_t stride() const { return heads * width; }
};

/// to [rows, padded width] = factor * the chunk's rows of x, and 0.
template <typename T, typename A>
void load_tile(const T* x, const HeadRows& at, const Chunk& chunk, A factor, A* to) {
  tile_loops<T>().load(x + at.first(chunk), at.stride(), chunk.length, at.width, factor, to,
                       chunk.rows(), padded(at.width));
}

/// The inverse: the chunk's rows of x = factor * from.
template <typename T, typename A>
void store_tile(const A* from, const HeadRows& at, const Chunk& chunk, A factor, T* x) {
  tile_loops<T>().store(from, padded(at.width), chunk.length, at.width, factor, x + at.first(chunk),
                        at.stride());
}

/// Loads a state of the call [DK,DV] into one of a rule, or zeros.
template <typename A>
void load_state(const ChunkedSizes& sizes, const A* from, A* to) {
  if (from == nullptr || !sizes.whole()) std::fill_n(to, sizes.state_size(), A{0});
  if (from == nullptr) return;
  for (int64_t c = 0; c < sizes.key_width; ++c) {
    std::copy_n(from + c * sizes.value_width, sizes.value_width, to + c * sizes.values());
  }
}

template <typename A>
void store_state(const ChunkedSizes& sizes, const A* from, A* to) {
  for (int64_t c = 0; c < sizes.key_width; ++c) {
    std::copy_n(from + c * sizes.values(), sizes.value_width, to + c * sizes.value_width);
  }
}

/// The most heads that a task takes through a chunk together. Rows of neighbouring heads are
/// neighbours in memory; one head's alone, a token apart, come at a fraction of the bandwidth.
inline constexpr int64_t kTogether = 4;

/// The most entries of states that a backward pass keeps to take heads together: 4 MiB of float.
inline constexpr int64_t kKeptTogether = 1 << 20;

/// The number of heads, at most `most` of `heads`, that a task takes: the largest for which the
/// threads finish soonest.
inline int64_t heads_of_task(const ChunkedSizes& sizes, int64_t heads, int64_t most) {
  const int64_t threads = sizes.entries() < kWorthThreads ? 1 : omp_get_max_threads();
  const auto time = [&](int64_t together) {
    const int64_t tasks = sizes.sequences.count() * ((heads + together - 1) / together);
    return (tasks + threads - 1) / threads * together;
  };
  int64_t best = 1;
  for (int64_t n = 2; n <= std::min(heads, most); ++n) {
    if (time(n) <= time(best)) best = n;
  }
  return best;
}

/// `count` heads, `step` apart.
struct HeadRange {
  int64_t first, count, step;
};

/// Calls body(chunk, x, n) for every chunk n of a sequence and each head x of `range`, in order or
/// in exactly the reverse, so that a rule may keep a stack.
template <typename Body>
void for_chunks(const ChunkedSizes& sizes, const Sequence& s, const HeadRange& range,
                bool backwards, const Body& body) {
  const int64_t count = (s.length + kChunk - 1) / kChunk;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t n = backwards ? count - 1 - i : i, first = n * kChunk;
    for (int64_t j = 0; j < range.count; ++j) {
      const int64_t x = backwards ? range.count - 1 - j : j, head = range.first + x * range.step;
      body(Chunk{sizes.sequences.first_token(s) + first, std::min(kChunk, s.length - first), head,
                 head / sizes.group(), n + 1 == count},
           x, n);
    }
  }
}

/// o and state for sequences of one token, as in decoding.
template <typename T>
void step_single_tokens(const MatrixStateInputs<T>& in, T* o, Accumulator<T>* state) {
  const auto& all = in.sequences.list;
  const auto single = [](const Sequence& s) { return s.length == 1; };
  if (std::any_of(all.begin(), all.end(), single)) matrix_step(in, o, state);
}

/// make() returns a Rule. o [B,T,H,DV]; state [N,H,DK,DV], or null if the Rule stores its own. If
/// it does not, sequences of one token are skipped: see step_single_tokens().
template <typename T, typename MakeRule>
void chunked_forward(const MatrixStateInputs<T>& in, const MakeRule& make, T* o,
                     Accumulator<T>* state) {
  using A = Accumulator<T>;
  const ChunkedSizes sizes(in);
  constexpr bool kHands = !kOwnStates<MakeRule>;
  const int64_t heads = sizes.heads, together = heads_of_task(sizes, heads, kHands ? kTogether : 1);
  const int64_t tasks = (heads + together - 1) / together;  // of a sequence
  parallel_tasks(sizes.sequences.count() * tasks, sizes.entries(), [&](int64_t task) {
    const Sequence& s = sizes.sequences.list[task / tasks];
    if (kHands && s.length == 1) return;
    const int64_t first = task % tasks * together, count = std::min(together, heads - first);
    const int64_t rows = sizes.rows(), offset = sizes.state_offset(task / tasks, first);
    const Buffer<A> q(rows * sizes.keys()), k(rows * sizes.keys());
    const Buffer<A> v(rows * sizes.values()), out(rows * sizes.values());
    // The states advance in their final locations, unless they need padding.
    const bool in_place = kHands && sizes.whole();
    const Buffer<A> wide(kHands && !in_place ? count * sizes.state_size() : 0);
    A* const states = in_place ? state + offset : wide.data();
    const int64_t size = sizes.state_size(), width = sizes.key_width * sizes.value_width;
    for (int64_t x = 0; x < count && kHands; ++x) {
      const A* initial = in.initial_state ? in.initial_state + offset + x * width : nullptr;
      load_state<A>(sizes, initial, states + x * size);
    }
    auto rule = make();
    const auto step = [&](const Chunk& chunk, int64_t x, int64_t) {
      const HeadRows queries{heads, chunk.head, sizes.key_width};
      const HeadRows keys{sizes.kv_heads, chunk.kv_head, sizes.key_width};
      load_tile(in.q, queries, chunk, static_cast<A>(in.scale), q.data());
      load_tile(in.k, keys, chunk, A{1}, k.data());
      load_tile(in.v, {sizes.kv_heads, chunk.kv_head, sizes.value_width}, chunk, A{1}, v.data());
      rule.forward(chunk, ChunkTiles<A>{q.data(), k.data(), v.data(), out.data()},
                   kHands ? states + x * size : nullptr);
      store_tile(out.data(), {heads, chunk.head, sizes.value_width}, chunk, A{1}, o);
    };
    for_chunks(sizes, s, {first, count, 1}, /*backwards=*/false, step);
    for (int64_t x = 0; x < count && kHands && !in_place; ++x) {
      store_state<A>(sizes, states + x * size, state + offset + x * width);
    }
  });
}

/// grad_o [B,T,H,DV] and grad_state [N,H,DK,DV], either of which may be null for zero.
template <typename T, typename MakeRule>
void chunked_backward(const MatrixStateInputs<T>& in, const MakeRule& make, const T* grad_o,
                      const Accumulator<T>* grad_state, const MatrixStateGradients<T>& out) {
  using A = Accumulator<T>;
  const ChunkedSizes sizes(in);
  constexpr bool kHands = !kOwnStates<MakeRule>;
  const int64_t heads = sizes.heads, kv_heads = sizes.kv_heads, group = sizes.group();
  const int64_t keys = sizes.keys(), values = sizes.values(), rows = sizes.rows();
  const int64_t state_size = kHands ? sizes.state_size() : 0;
  // A few heads together, unless that keeps much more: their states, or sums over groups.
  const int64_t kept_states = state_size * ((sizes.longest + kChunk - 1) / kChunk);
  int64_t most = kHands && group == 1 ? kTogether : 1;
  while (most > 1 && most * kept_states > kKeptTogether) --most;
  const int64_t together = heads_of_task(sizes, kv_heads, most);
  const int64_t tasks = (kv_heads + together - 1) / together;  // of a sequence
  parallel_tasks(sizes.sequences.count() * tasks, sizes.entries(), [&](int64_t task) {
    const Sequence& s = sizes.sequences.list[task / tasks];
    const int64_t first = task % tasks * together, count = std::min(together, kv_heads - first);
    const int64_t chunks = (s.length + kChunk - 1) / kChunk;
    const Buffer<A> q(rows * keys), k(rows * keys), v(rows * values), d_o(rows * values);
    const Buffer<A> dq(out.q != nullptr ? rows * keys : 0);
    // The gradients of k and v are summed over the heads of a group, so they are stored whole.
    const int64_t kept = group > 1 ? padded(s.length) : rows;
    const Buffer<A> dk(out.k != nullptr ? kept * keys : 0);
    const Buffer<A> dv(out.v != nullptr ? kept * values : 0);
    const Buffer<A> dk_head(group > 1 && out.k != nullptr ? rows * keys : 0);
    const Buffer<A> dv_head(group > 1 && out.v != nullptr ? rows * values : 0);
    const Buffer<A> states(count * chunks * state_size);  // [count, chunks, state_size]
    const Buffer<A> ends(count * state_size);
    const auto load_keys_and_values = [&](const Chunk& chunk) {
      load_tile(in.k, {kv_heads, chunk.kv_head, sizes.key_width}, chunk, A{1}, k.data());
      load_tile(in.v, {kv_heads, chunk.kv_head, sizes.value_width}, chunk, A{1}, v.data());
    };
    // One chunk's gradient of k or v: stored, or accumulated until the last head of the group.
    const auto hand_over = [&](T* to, const A* part, A* sum, int64_t width, const Chunk& chunk,
                               int64_t n) {
      if (to == nullptr) return;
      if (group > 1) {
        const int64_t ld = padded(width), size = chunk.length * ld;
        A* all = sum + n * kChunk * ld;
        const bool is_first = chunk.head % group == 0;
#pragma omp simd
        for (int64_t x = 0; x < size; ++x) all[x] = is_first ? part[x] : all[x] + part[x];
        if (chunk.head % group < group - 1) return;
        part = all;
      }
      store_tile(part, {kv_heads, chunk.kv_head, width}, chunk, A{1}, to);
    };
    for (int64_t pass = 0; pass < group; ++pass) {
      const HeadRange range{first * group + pass, count, group};
      const auto state_offset = [&](int64_t x) {
        return sizes.state_offset(task / tasks, range.first + x * range.step);
      };
      const auto load_ends = [&](const A* from) {
        for (int64_t x = 0; x < count && kHands; ++x) {
          load_state<A>(sizes, from ? from + state_offset(x) : nullptr, ends + x * state_size);
        }
      };
      auto rule = make();
      load_ends(in.initial_state);
      const auto advance = [&](const Chunk& chunk, int64_t x, int64_t n) {
        A* const end = ends + x * state_size;
        std::copy_n(end, state_size, states + (x * chunks + n) * state_size);
        if (chunk.last) return;  // nothing reads the state after it
        load_keys_and_values(chunk);
        rule.advance(chunk, ChunkTiles<A>{nullptr, k.data(), v.data(), nullptr}, end);
      };
      for_chunks(sizes, s, range, /*backwards=*/false, advance);
      load_ends(grad_state);
      const auto back = [&](const Chunk& chunk, int64_t x, int64_t n) {
        const HeadRows queries{heads, chunk.head, sizes.key_width};
        load_keys_and_values(chunk);
        load_tile(in.q, queries, chunk, static_cast<A>(in.scale), q.data());
        if (grad_o != nullptr) {
          load_tile(grad_o, {heads, chunk.head, sizes.value_width}, chunk, A{1}, d_o.data());
        } else {
          std::fill_n(d_o.data(), chunk.rows() * values, A{0});
        }
        A* const dk_part = group > 1 ? dk_head.data() : dk.data();
        A* const dv_part = group > 1 ? dv_head.data() : dv.data();
        rule.backward(chunk, ChunkTiles<A>{q.data(), k.data(), v.data(), nullptr},
                      states + (x * chunks + n) * state_size,
                      ChunkGradients<A>{d_o.data(), dq.data(), dk_part, dv_part},
                      ends + x * state_size);
        if (out.q != nullptr) {
          store_tile(dq.data(), queries, chunk, static_cast<A>(in.scale), out.q);
        }
        hand_over(out.k, dk_part, dk.data(), sizes.key_width, chunk, n);
        hand_over(out.v, dv_part, dv.data(), sizes.value_width, chunk, n);
      };
      for_chunks(sizes, s, range, /*backwards=*/true, back);
      for (int64_t x = 0; x < count && out.initial_state != nullptr; ++x) {
        store_state<A>(sizes, ends + x * state_size, out.initial_state + state_offset(x));
      }
    }
  });
}

}  // namespace hopmix::kernels
