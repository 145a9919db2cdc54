#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "gloo/transport/device.h"

namespace gloo {

// Only libtorch makes contexts; their functions are found by name.
class Context {
 public:
  virtual ~Context();
  void setTimeout(std::chrono::milliseconds timeout);
  std::unique_ptr<transport::UnboundBuffer> createUnboundBuffer(void *data, size_t n);
};

}  // namespace gloo

namespace gloo::transport::tcp {

class UnboundBuffer : public transport::UnboundBuffer {
 public:
  // Virtual in gloo; here called by its name.
  bool waitRecv(int *rank, std::chrono::milliseconds timeout);
};

}  // namespace gloo::transport::tcp
