#include "hopmix/kernels/scan/linear_recurrence_loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/scan/linear_recurrence_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/rows/row_ops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

// Runs channels [c, c + kCount * lanes) through time, their states in registers; visit(t, state)
// sees y_t.
template <int64_t kCount, typename T, typename Visit>
HWY_INLINE void run_vectors(const ChannelBlock<T>& b, int64_t c, const Visit& visit) {
  using A = Accumulator<T>;
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  Vec<A> state[kCount];
  for (int64_t v = 0; v < kCount; ++v) {
    state[v] = b.initial ? hn::LoadU(d, b.initial + c + v * lanes) : hn::Zero(d);
  }
  for (int64_t t = 0; t < b.length; ++t) {
    const T *a = b.a + t * b.stride + c, *x = b.x + t * b.stride + c;
    for (int64_t v = 0; v < kCount; ++v) {
      state[v] = hn::MulAdd(load_as(a + v * lanes), state[v], load_as(x + v * lanes));
    }
    visit(t, state);
  }
}

// The same for one channel.
template <typename T, typename Visit>
HWY_INLINE void run_channel(const ChannelBlock<T>& b, int64_t c, const Visit& visit) {
  using A = Accumulator<T>;
  A state = b.initial ? b.initial[c] : A{0};
  for (int64_t t = 0; t < b.length; ++t) {
    const int64_t at = t * b.stride + c;
    state = static_cast<A>(b.a[at]) * state + static_cast<A>(b.x[at]);
    visit(t, state);
  }
}

// Calls vectors(count, c) for groups of vectors and channel(c) for what is left.
template <typename A, typename Vectors, typename Channel>
HWY_INLINE void for_channels(int64_t width, const Vectors& vectors, const Channel& channel) {
  const int64_t lanes = hn::Lanes(Tag<A>());
  int64_t c = 0;
  for (; c + kVectors * lanes <= width; c += kVectors * lanes) {
    vectors(std::integral_constant<int64_t, kVectors>(), c);
  }
  for (; c + lanes <= width; c += lanes) vectors(std::integral_constant<int64_t, 1>(), c);
  for (; c < width; ++c) channel(c);
}

template <typename T>
void forward(const ChannelBlock<T>& b) {
  using A = Accumulator<T>;
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t c = 0; c < b.width; ++c) b.state[c] = b.initial ? b.initial[c] : A{0};
  for_channels<A>(
      b.width,
      [&](auto count, int64_t c) HWY_ATTR {
        run_vectors<count>(b, c, [&](int64_t t, const Vec<A>* state) HWY_ATTR {
          for (int64_t v = 0; v < count; ++v) {
            store_as(state[v], b.y + t * b.stride + c + v * lanes);
            if (t + 1 == b.length) hn::StoreU(state[v], d, b.state + c + v * lanes);
          }
        });
      },
      [&](int64_t c) HWY_ATTR {
        run_channel(b, c, [&](int64_t t, A state) HWY_ATTR {
          b.y[t * b.stride + c] = static_cast<T>(state);
          b.state[c] = state;
        });
      });
}

template <typename T>
void states(const ChannelBlock<T>& b) {
  using A = Accumulator<T>;
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  for_channels<A>(
      b.width,
      [&](auto count, int64_t c) HWY_ATTR {
        run_vectors<count>(b, c, [&](int64_t t, const Vec<A>* state) HWY_ATTR {
          for (int64_t v = 0; v < count; ++v) {
            hn::StoreU(state[v], d, b.exact + t * b.width + c + v * lanes);
          }
        });
      },
      [&](int64_t c) HWY_ATTR {
        run_channel(b, c, [&](int64_t t, A state) HWY_ATTR { b.exact[t * b.width + c] = state; });
      });
}

// y_{t-1} of the block, before it was rounded.
template <typename T>
HWY_INLINE const Accumulator<T>* states_before(const ChannelBlock<T>& b,
                                               const ChannelGradients<T>& g, int64_t t) {
  if (t == 0) return b.initial;
  if constexpr (kRoundsOutput<T>) {
    return b.exact + (t - 1) * b.width;
  } else {
    return g.y + (t - 1) * b.stride;
  }
}

// g_t = dLoss/dy_t, carried to t - 1 through a_t.
template <typename T>
void backward(const ChannelBlock<T>& b, const ChannelGradients<T>& g) {
  using A = Accumulator<T>;
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  for_channels<A>(
      b.width,
      [&](auto count, int64_t c) HWY_ATTR {
        Vec<A> carried[count];
        for (int64_t v = 0; v < count; ++v) {
          carried[v] = g.grad_state ? hn::LoadU(d, g.grad_state + c + v * lanes) : hn::Zero(d);
        }
        for (int64_t t = b.length - 1; t >= 0; --t) {
          const A* before = g.a ? states_before(b, g, t) : nullptr;
          for (int64_t v = 0; v < count; ++v) {
            const int64_t at = t * b.stride + c + v * lanes;
            if (g.grad_y) carried[v] = hn::Add(carried[v], load_as(g.grad_y + at));
            if (g.x) store_as(carried[v], g.x + at);
            if (g.a) {
              const auto y = before ? hn::LoadU(d, before + c + v * lanes) : hn::Zero(d);
              store_as(hn::Mul(carried[v], y), g.a + at);
            }
            carried[v] = hn::Mul(carried[v], load_as(b.a + at));
          }
        }
        for (int64_t v = 0; g.initial && v < count; ++v) {
          hn::StoreU(carried[v], d, g.initial + c + v * lanes);
        }
      },
      [&](int64_t c) HWY_ATTR {
        A carried = g.grad_state ? g.grad_state[c] : A{0};
        for (int64_t t = b.length - 1; t >= 0; --t) {
          const int64_t at = t * b.stride + c;
          if (g.grad_y) carried += static_cast<A>(g.grad_y[at]);
          if (g.x) g.x[at] = static_cast<T>(carried);
          if (g.a) {
            const A* before = states_before(b, g, t);
            g.a[at] = static_cast<T>(before ? carried * before[c] : A{0});
          }
          carried *= static_cast<A>(b.a[at]);
        }
        if (g.initial) g.initial[c] = carried;
      });
}

template <typename T>
LinearRecurrenceLoops<T> loops() {
  return {forward<T>, states<T>, backward<T>};
}
LinearRecurrenceLoops<float> loops_float() { return loops<float>(); }
LinearRecurrenceLoops<double> loops_double() { return loops<double>(); }
LinearRecurrenceLoops<Bfloat16> loops_bfloat16() { return loops<Bfloat16>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hopmix::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(loops_float);
HWY_EXPORT(loops_double);
HWY_EXPORT(loops_bfloat16);

template <>
LinearRecurrenceLoops<float> linear_recurrence_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_float)();
}
template <>
LinearRecurrenceLoops<double> linear_recurrence_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_double)();
}
template <>
LinearRecurrenceLoops<Bfloat16> linear_recurrence_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_bfloat16)();
}

}  // namespace hopmix::kernels
#endif
