// The levels of log-linear attention, as layers ask for them (kernels/chunked/fenwick.h).
#pragma once

#include "hopmix/kernels/chunked/fenwick.h"

namespace hopmix::ops {

using kernels::fenwick_completes;
using kernels::fenwick_levels;
using kernels::for_buckets;

}  // namespace hopmix::ops
