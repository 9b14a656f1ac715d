// The loops of selective_scan over a piece of a sequence and kPad channels, compiled for every
// instruction set. A piece is processed one state at a time: each of the S numbers per channel runs
// through all tokens in registers, while the data of the tokens stays in the L1 cache.
#pragma once

#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/scan/selective_scan.h"

namespace hopmix::kernels {

/// Scratch of one piece and kPad channels: arrays of [kScanPiece, kPad].
template <typename A>
struct ScanScratch {
  // A few extra rows: if one array is written just before another is read, their addresses must
  // differ in the last twelve bits.
  static constexpr int64_t kSize = (kScanPiece + 5) * kPad;
  Buffer<A> memory{10 * kSize};

  A* array(int64_t i) const { return memory.data() + i * kSize; }
  A* delta() const { return array(0); }
  A* x() const { return array(1); }  // delta u
  A* y() const { return array(2); }
  A* grad_y() const { return array(2); }  // the backward has no y
  A* grad_x() const { return array(3); }
  A* grad_delta() const { return array(4); }                       // through the decays alone
  A* decays(int64_t state) const { return array(6 + 2 * state); }  // of two states, then dB's terms
  A* h(int64_t state) const { return array(7 + 2 * state); }       // the same, then dC's terms
};

/// The tokens of one piece, with kPad channels or, at the edge, `channels`.
template <typename T>
struct ScanPiece {
  using A = Accumulator<T>;
  int64_t length, stride;  // token t of u, delta, y lies at t * stride
  int64_t channels, states;
  const T *u, *delta;
  const A *b, *c;  // [length, states]
  const A* a;      // [states] rows of kPad
  const A* d;      // [kPad]
  A* h;            // [states] rows of kPad: the state, moved from before the piece to behind it
};

template <typename T>
struct ScanPieceGradients {
  using A = Accumulator<T>;
  const T* grad_y;
  T *u, *delta;  // written unless null
  A* carried;    // [states] rows of kPad: dLoss/dh behind the piece, then before it
  A *a, *d;      // as ScanPiece::a and d; the piece's sums are added
  A *b, *c;      // [states, kScanPiece], written unless null: of these channels
};

template <typename T>
struct SelectiveScanLoops {
  using A = Accumulator<T>;
  void (*forward)(const ScanPiece<T>&, const ScanScratch<A>&, T* y);
  /// Leaves p.h unchanged: the state before the piece.
  void (*backward)(const ScanPiece<T>&, const ScanScratch<A>&, const ScanPieceGradients<T>&);
};

template <typename T>
SelectiveScanLoops<T> selective_scan_loops();

}  // namespace hopmix::kernels
