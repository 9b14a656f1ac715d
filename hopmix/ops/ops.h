// The operators of hopmix for C++: each function calls the PyTorch operator of the same name
// (torch.ops.hopmix.NAME in Python), so autograd, meta tensors and torch.compile see the same thing
// from both languages.
//
// Shapes: B batch, T time, H query heads, G key/value heads (H a multiple of G), DK key width, DV
// value width, nnz reads of the pattern. Tensors are float32, float64 or bfloat16 (float32
// accumulation), all of one dtype, any strides. `scale` defaults to 1/sqrt(DK). With `cu_seqlens`
// (int64 [N+1], from 0 to T) B is 1 and the N packed sequences do not see each other; the pattern
// then describes the longest.
//
// Errors: a wrong shape, dtype or pattern raises ValueError (c10::ValueError) with the argument,
// its value and what would be right. Operators are differentiable once: the derivative of a
// gradient raises an error.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace hopmix::ops {

using at::Tensor;

/// A pattern as two tensors (`row_ptr` int64 [n+1], `cols` int32 [nnz], rows ascending, j < i), or
/// as its spec, in which case rows are made on the fly and no index list exists.
struct PatternArg {
  std::string_view spec;
  Tensor row_ptr, cols;
  PatternArg(std::string_view s) : spec(s) {}    // NOLINT: implicit
  PatternArg(const std::string& s) : spec(s) {}  // NOLINT: implicit
  PatternArg(const char* s) : spec(s) {}         // NOLINT: implicit
  PatternArg(Tensor ptr, Tensor c) : row_ptr(std::move(ptr)), cols(std::move(c)) {}
};

/// The rows of `spec` on n tokens: (row_ptr int64 [n+1], cols int32 [nnz]).
std::tuple<Tensor, Tensor> pattern(std::string_view spec, int64_t n);

/// Generalized linear recurrence with explicit coefficients (GLR equation 1):
///   y_i = alpha_diag_i x_i + sum_j alpha_ij x_j + beta_ij y_j over j in row i.
/// alpha_diag [B,H,T], alpha and beta [B,H,nnz], x [B,T,H,D] -> [B,T,H,D]. With cu_seqlens, nnz
/// counts the reads of all packed sequences, one after the other.
Tensor glr(const Tensor& alpha_diag, const Tensor& alpha, const Tensor& beta, const Tensor& x,
           const PatternArg& pattern, const std::optional<Tensor>& cu_seqlens = {});

/// GLR with positive coefficients divided by itself applied to ones, in the log domain, so that
/// nothing overflows: with z the recurrence on ones,
///   z_i y_i = alpha_ii x_i + sum_j (alpha_ij x_j + beta_ij z_j y_j).
/// Arguments are those of glr by their logarithms, -inf for an absent term -> (y [B,T,H,D], log_z
/// [B,T,H], float64 for float64 inputs, else float32). A row of absent terms has y = 0, log_z =
/// -inf.
std::tuple<Tensor, Tensor> glr_normalized(const Tensor& log_alpha_diag, const Tensor& log_alpha,
                                          const Tensor& log_beta, const Tensor& x,
                                          const PatternArg& pattern,
                                          const std::optional<Tensor>& cu_seqlens = {});

/// GLR with shared coefficients (paper appendix B.3): P = softmax over row i of scale q_i . k_j,
/// and
///   z_i = (d_i + d_self_i) v_i + gate_i sum_j P_ij z_j,  y_i = z_i - d_i v_i.
/// q [B,T,H,DK], k [B,T,G,DK], v [B,T,G,DV], gate, d, d_self [B,T,H] -> [B,T,H,DV].
Tensor glr_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                     const Tensor& d, const Tensor& d_self, const PatternArg& pattern,
                     std::optional<double> scale = {},
                     const std::optional<Tensor>& cu_seqlens = {});

/// GLR whose coefficients are one softmax over direct and recurrent terms together: with s_ij =
/// scale q_i . k_j,
///   y_i = a_ii v_i + sum_j (a_ij v_j + b_ij y_j),
///   (a_ii, a_i., b_i.) = softmax of (d_self_i, s_ij + d_j, s_ij + g_i), or g_j if `gate_on_read`.
/// d, d_self, g [B,T,H] are logits, of which -inf makes terms absent; the rest as in glr_attention.
Tensor glr_softmax(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& d,
                   const Tensor& d_self, const Tensor& g, const PatternArg& pattern,
                   std::optional<double> scale = {}, bool gate_on_read = false,
                   const std::optional<Tensor>& cu_seqlens = {});

/// glr_attention on the pattern `dense`, by blocks through matrix products: the same to rounding,
/// and quicker where sequences are not short. In bfloat16 products take bfloat16 operands (q, k, z
/// and the softmax weights). Memory O(T (DK + DV)).
Tensor dense_recurrence(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                        const Tensor& d, const Tensor& d_self, std::optional<double> scale = {},
                        const std::optional<Tensor>& cu_seqlens = {});

/// ChaCAL (Fagnou et al. 2024, arXiv 2410.05565): Y = (1 - gamma) A (I - gamma A)^{-1} V with A
/// causal softmax attention, self included. 0 <= gamma < 1; gamma = 0 is attention. Shapes, types
/// and cost as for dense_recurrence.
Tensor chacal(const Tensor& q, const Tensor& k, const Tensor& v, double gamma,
              std::optional<double> scale = {}, const std::optional<Tensor>& cu_seqlens = {});

/// Block-ChaCAL: chacal inside blocks of `block` tokens (the least b with b^3 >= the sequence's
/// length if absent), across them one summary key and value a block; kernels/dense/block_chacal.h
/// has the definition. One block is chacal. Time O(T^(4/3) D), memory O(T (DK + DV + block)).
Tensor block_chacal(const Tensor& q, const Tensor& k, const Tensor& v, double gamma,
                    std::optional<int64_t> block = {}, std::optional<double> scale = {},
                    const std::optional<Tensor>& cu_seqlens = {});

/// Softmax attention over row i (and i itself if `include_self`). A token that reads nothing gets
/// 0. q [B,T,H,DK], k [B,T,G,DK], v [B,T,G,DV] -> [B,T,H,DV].
Tensor sparse_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const PatternArg& pattern, bool include_self,
                        std::optional<double> scale = {},
                        const std::optional<Tensor>& cu_seqlens = {});

/// Causal softmax attention, each token itself included: o_i = sum over j <= i of softmax(scale q_i
/// . k_j) v_j. Shapes and types as for dense_recurrence. Time O(T^2 D), memory O(T (DK + DV)).
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 std::optional<double> scale = {}, const std::optional<Tensor>& cu_seqlens = {});

/// Causal softmax attention, o, and for each token and query head its kappa best positions: those
/// of the largest scores scale q_i . k_j, j < i and i itself if `include_self` (which o always
/// reads), best first, of equal ones the earlier. NaN is below all numbers. Where fewer are visible
/// there are all of them, then -1. Positions count from their sequence's first token. With `block`
/// > 1 the best blocks instead, by the best score in them: tokens [c block, (c + 1) block) of their
/// sequence are block c, and the token's own counts as far as it is visible. Gradients are those of
/// o. q [B,T,H,DK], k [B,T,G,DK], v [B,T,G,DV] -> (o [B,T,H,DV], indices int32 [B,T,H,kappa]).
/// Memory O(T (DK + DV + kappa)).
std::tuple<Tensor, Tensor> attention_topk(const Tensor& q, const Tensor& k, const Tensor& v,
                                          int64_t kappa, std::optional<double> scale = {},
                                          bool include_self = true,
                                          const std::optional<Tensor>& cu_seqlens = {},
                                          int64_t block = 1);

/// y_t = a_t y_{t-1} + x_t per channel. a, x [B,T,E], initial_state [B,E] (zero if absent) -> (y
/// [B,T,E], state [B,E]). The state is float32 for float32 and bfloat16 inputs, float64 for
/// float64. With cu_seqlens states are [N,E].
std::tuple<Tensor, Tensor> linear_recurrence(const Tensor& a, const Tensor& x,
                                             const std::optional<Tensor>& initial_state = {},
                                             const std::optional<Tensor>& cu_seqlens = {});

/// Linear attention: S_t = S_{t-1} + k_t v_t^T, o_t = scale q_t S_t (Katharopoulos et al. 2020,
/// arXiv 2006.16236, equations 16 to 20 without the normalizer). q [B,T,H,DK], k [B,T,G,DK],
/// v [B,T,G,DV], initial_state [B,H,DK,DV] (zero if absent) -> (o [B,T,H,DV], state [B,H,DK,DV],
/// S after the last token). States are float32 for float32 and bfloat16 inputs, float64 for
/// float64; with cu_seqlens they are [N,H,DK,DV]. Time O(T DK DV), memory O(T (DK + DV)).
std::tuple<Tensor, Tensor> linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                            std::optional<double> scale = {},
                                            const std::optional<Tensor>& initial_state = {},
                                            const std::optional<Tensor>& cu_seqlens = {});

/// The same with one decay a head: S_t = e^{g_t} S_{t-1} + k_t v_t^T with g = log_decay [B,T,H]:
/// the SSD of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060, section 5) with q = C, k = B, v = dt x
/// and g = dt A. Any g for which the states stay finite, -inf (forget all) included.
std::tuple<Tensor, Tensor> ssd(const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& log_decay, std::optional<double> scale = {},
                               const std::optional<Tensor>& initial_state = {},
                               const std::optional<Tensor>& cu_seqlens = {});

/// Gated linear attention (Yang et al. 2023, arXiv 2312.06635, equation 3): the same with one decay
/// a key channel, S_t = diag(e^{g_t}) S_{t-1} + k_t v_t^T with g = log_decay [B,T,H,DK].
std::tuple<Tensor, Tensor> gla(const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& log_decay, std::optional<double> scale = {},
                               const std::optional<Tensor>& initial_state = {},
                               const std::optional<Tensor>& cu_seqlens = {});

/// The delta rule: with S' = S_{t-1}, u_t = beta_t (v_t - S'^T k_t), S_t = S' + k_t u_t^T,
/// o_t = scale S_t^T q_t. Keys are not normalized here: S grows without bound where
/// beta_t |k_t|^2 > 2. q [B,T,H,DK], k [B,T,G,DK], v [B,T,G,DV], beta [B,T,H], initial_state
/// [B,H,DK,DV] (zero if absent) -> (o [B,T,H,DV], state [B,H,DK,DV]); the state as of
/// linear_recurrence. (Yang et al. 2024, arXiv 2406.06484.)
std::tuple<Tensor, Tensor> delta_rule(const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Tensor& beta, std::optional<double> scale = {},
                                      const std::optional<Tensor>& initial_state = {},
                                      const std::optional<Tensor>& cu_seqlens = {});

/// The same with S' = exp(log_decay_t) S_{t-1}; log_decay [B,T,H]. (Yang et al. 2024, arXiv
/// 2412.06464.)
std::tuple<Tensor, Tensor> gated_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v,
                                            const Tensor& log_decay, const Tensor& beta,
                                            std::optional<double> scale = {},
                                            const std::optional<Tensor>& initial_state = {},
                                            const std::optional<Tensor>& cu_seqlens = {});

/// Kimi Delta Attention (Kimi team 2025, arXiv 2510.26692): the same with a decay a key channel, S'
/// = diag(e^{g_t}) S_{t-1} with g = log_decay [B,T,H,DK].
std::tuple<Tensor, Tensor> kda(const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& log_decay, const Tensor& beta,
                               std::optional<double> scale = {},
                               const std::optional<Tensor>& initial_state = {},
                               const std::optional<Tensor>& cu_seqlens = {});

/// One token of sparse_attention, or what that of glr_attention reads, from what a decoder holds:
///   y_h = sum_r softmax_r(scale q_h . k_r) v_r
/// over the S slots of k and v, or those that `slots` lists (int32 [R], any order), and last own_k
/// and own_v if given. q [B,H,DK], k [B,S,G,DK], v [B,S,G,DV], own_k [B,G,DK], own_v [B,G,DV] ->
/// [B,H,DV]; 0 where nothing is read. It has no derivative: an input that requires a gradient is an
/// error.
Tensor attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                      const std::optional<Tensor>& slots = {},
                      const std::optional<Tensor>& own_k = {},
                      const std::optional<Tensor>& own_v = {}, std::optional<double> scale = {});

/// One token of linear_attention, ssd, gla or a delta rule, as in decoding: S becomes
/// diag(e^log_decay) S + k u^T in place, with u = v, or with `beta` the delta rule's; o = scale S^T
/// q. q [B,H,DK], k [B,G,DK], v [B,G,DV], log_decay [B,H] or [B,H,DK], beta [B,H], state
/// [B,H,DK,DV] (contiguous, float64 for float64 inputs, else float32) -> o [B,H,DV]. It has no
/// derivative: an input that requires a gradient is an error.
Tensor matrix_step_(const Tensor& q, const Tensor& k, const Tensor& v,
                    const std::optional<Tensor>& log_decay, const std::optional<Tensor>& beta,
                    const Tensor& state, std::optional<double> scale = {});

/// Log-linear attention (Guo et al. 2025, arXiv 2506.04761): ssd whose past is cut into the O(log
/// T) buckets of a Fenwick tree, each read with its own factor,
///   o_i = scale * sum over j <= i of level_scales[i, l(i,j)] e^{g_{j+1} + ... + g_i} (q_i . k_j)
///   v_j,
/// l(i,j) the number of bits of i xor j (kernels/chunked/fenwick.h). g = log_decay [B,T,H],
/// level_scales [B,T,H,L] with L at least ceil(log2 T) + 1 -> [B,T,H,DV]. Time O(T log T).
Tensor log_linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                            const Tensor& log_decay, const Tensor& level_scales,
                            std::optional<double> scale = {},
                            const std::optional<Tensor>& cu_seqlens = {});

/// The same for the gated delta rule: each bucket has a state that its own tokens write by the rule
/// and that all later ones carry on, S <- e^{g_t} (I - beta_t k_t k_t^T) S; o_i = scale * sum over
/// levels of level_scales[i, l] S_l^T q_i. beta [B,T,H].
Tensor log_linear_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& log_decay, const Tensor& beta,
                             const Tensor& level_scales, std::optional<double> scale = {},
                             const std::optional<Tensor>& cu_seqlens = {});

/// y = x weight^T + bias, as of a layer. x [...,K] with 1 to 4 dimensions, weight [N,K], bias [N]
/// ->
/// [...,N]. The bits do not depend on the number of threads.
Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias = {});

/// The same without a bias for the rows of several weights [N_i,K], one after another, in parts of
/// `widths` rows that each lie in one weight -> [...,width] each, contiguous. No weights are put
/// together, and no part is a slice that a kernel would copy.
std::vector<Tensor> linear_parts(const Tensor& x, at::TensorList weights, at::IntArrayRef widths);

/// gelu(x up^T + up_bias) down^T + down_bias with the exact GELU. x [...,K], up [M,K], up_bias [M],
/// down [N,M], down_bias [N] -> [...,N]. Of what is between, M numbers a row are kept for the
/// backward, and nothing without one.
Tensor mlp(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& down,
           const Tensor& down_bias);

/// Neighbouring pairs of the last dimension rotated by an angle of the position (RoFormer, arXiv
/// 2104.09864, equation 34). x [B,T,H,D] with D even; cos and sin [1 or B,T,D/2] -> [B,T,H,D].
Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin);

/// y = x / sqrt(mean of x^2 over the last dimension + eps) * weight. x [B,T,E], weight [E] ->
/// [B,T,E].
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps = 1e-6);

/// The map of a head and its cross entropy in one, without the matrix of logits
/// x weight^T + bias [N,V]: for each row the loss, -log softmax(logits)[target], and the guess, the
/// first of its largest logits. x [N,D], weight [V,D], bias [V], targets int64 [N], row_weights [N]
/// (1 / N each unless given) -> (loss [], the sum of row_weights times losses, losses [N], guesses
/// int64 [N]). loss, losses and row_weights are float32 for float32 and bfloat16 inputs, float64
/// for float64. loss alone is differentiable, in x, weight and bias.
std::tuple<Tensor, Tensor, Tensor> head_loss(const Tensor& x, const Tensor& weight,
                                             const std::optional<Tensor>& bias,
                                             const Tensor& targets,
                                             const std::optional<Tensor>& row_weights = {});

/// Causal depthwise convolution: y_t = f(bias + sum over j < W of weight[:, W-1-j] x_{t-j}), f SiLU
/// or nothing, tokens before the first being 0. x [B,T,E], weight [E,W] with W <= 32, bias [E] ->
/// [B,T,E].
Tensor short_convolution(const Tensor& x, const Tensor& weight,
                         const std::optional<Tensor>& bias = {}, bool silu = false,
                         const std::optional<Tensor>& cu_seqlens = {});

/// Selective state-space recurrence (Mamba, Gu and Dao 2023, arXiv 2312.00752): for channel e and
/// s < S, from the initial state or 0,
///   h_t[e,s] = exp(delta_t[e] A[e,s]) h_{t-1}[e,s] + delta_t[e] B_t[s] u_t[e],
///   y_t[e] = sum_s C_t[s] h_t[e,s] + D[e] u_t[e].
/// u, delta [B,T,E], A [E,S], B, C [B,T,S], D [E], initial_state [B,E,S] -> (y [B,T,E], state
/// [B,E,S]). A, D and states are float32 for float32 and bfloat16 inputs, float64 for float64. With
/// cu_seqlens states are [N,E,S]. Memory O(T E (1 + S / 64)).
std::tuple<Tensor, Tensor> selective_scan(const Tensor& u, const Tensor& delta, const Tensor& A,
                                          const Tensor& B, const Tensor& C,
                                          const std::optional<Tensor>& D = {},
                                          const std::optional<Tensor>& initial_state = {},
                                          const std::optional<Tensor>& cu_seqlens = {});

/// linear_recurrence whose memory is cut at block edges, two blocks back: y_t is the recurrence
/// begun with 0 at the start of the block before that of token t. Position p lies in block p /
/// `block`; a sequence's first token has position `start`. a, x [B,T,E] -> (y [B,T,E], state
/// [B,2,E]). The state is y of the last token, and y of it begun at the start of its own block; who
/// goes on from it passes the number of tokens behind it as `start`. With cu_seqlens states are
/// [N,2,E], and `start` is that of every sequence.
std::tuple<Tensor, Tensor> sliding_window_recurrence(
    const Tensor& a, const Tensor& x, int64_t block,
    const std::optional<Tensor>& initial_state = {}, int64_t start = 0,
    const std::optional<Tensor>& cu_seqlens = {});

/// The neighborhoods of MURA over what was retrieved: with N^(k)(i) the first k entries >= 0 of
/// indices[b, i, h],
///   N^(k1..km)(i) = the union of N^(km)(t) over t in N^(k1..k(m-1))(i):
/// this set, or if `cumulative` the union over r <= m of N^(k1..kr). indices int32 [B,T,H,K], each
/// -1 or a position up to its row, counted from the first token of its sequence; 1 <= k <= K ->
/// int32 [B,T,H,W], ascending, without doubles, -1 at the end; W is the product of the widths, or
/// the sum of the products of their beginnings.
Tensor neighborhood(const Tensor& indices, at::IntArrayRef widths, bool cumulative,
                    const std::optional<Tensor>& cu_seqlens = {});

/// Softmax attention over the positions that indices[b, i, h] lists, a position twice if it is
/// listed twice; entries of -1 are ignored wherever they stand, and a row without others gives 0. q
/// [B,T,H,DK], k [B,T,G,DK], v [B,T,G,DV], indices int32 [B,T,H,W], or [B,T,G,W] for all query
/// heads of a key/value head; positions are 0 to i, counted from the first token of their sequence
/// -> [B,T,H,DV].
Tensor gather_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& indices,
                        std::optional<double> scale = {},
                        const std::optional<Tensor>& cu_seqlens = {});

/// GLR by hops on what was retrieved: P = softmax over the positions of row i of scale q_i . k_j,
///   z_i^(0) = v_i,  z_i^(r) = gate_i sum_j P_ij z_j^(r-1) for r = 1 .. hops.
/// A row without positions has z_i^(r) = 0 for r >= 1. gate [B,T,H], any number; hops >= 1; indices
/// as in gather_attention but strictly before i -> [B,T,H,hops+1,DV].
Tensor retrieved_recurrence(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                            const Tensor& indices, int64_t hops, std::optional<double> scale = {},
                            const std::optional<Tensor>& cu_seqlens = {});

/// glr_attention on what was retrieved for each head, in place of a pattern: P = softmax over the
/// positions of row i of scale q_i . k_j,
///   z_i = (d_i + d_self_i) v_i + gate_i sum_j P_ij z_j,  y_i = z_i - d_i v_i.
/// gate, d, d_self [B,T,H] of any sign; indices as in retrieved_recurrence -> [B,T,H,DV].
Tensor retrieved_glr(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                     const Tensor& d, const Tensor& d_self, const Tensor& indices,
                     std::optional<double> scale = {},
                     const std::optional<Tensor>& cu_seqlens = {});

}  // namespace hopmix::ops
