// The part of PyTorch's C++ API that models and training use. <torch/torch.h> also brings in data
// loaders, every module and serialization, and takes twice as long to compile.
#pragma once

#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
