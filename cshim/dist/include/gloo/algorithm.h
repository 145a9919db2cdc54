// The wheels of libtorch contain gloo, but not its headers. These have what ProcessGroupGloo.hpp and the shim
// need.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>
