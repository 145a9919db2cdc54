#pragma once

namespace gloo::transport {

class Device;

// Its other virtual functions follow the destructor; none of them is called.
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = default;
};

}  // namespace gloo::transport
