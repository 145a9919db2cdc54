// Differences between the supported versions of libtorch, 2.11 to 2.15, in its CUDA part.
#pragma once

#include <torch/headeronly/version.h>

#define LS_TORCH_AT_LEAST(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))
