// How much memory is allocated at once while something runs, to the byte, whoever asks for it:
// tensors, vectors, the scratch of a library.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace hopmix::bench {

/// Runs `body` and returns the most bytes, over what was there before, that stood allocated at one
/// moment, of all threads together. A program that links this has malloc and its relatives count
/// while a body runs; they are glibc's own otherwise. Nothing is returned where that cannot be done
/// (another C library, a sanitizer). One body at a time.
std::optional<int64_t> peak_allocated(const std::function<void()>& body);

}  // namespace hopmix::bench
