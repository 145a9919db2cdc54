// The recorder of operators, for the other files of the shim.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ls {

struct ThreadTrace;
// The calling thread's; nullptr before its first event.
extern constinit thread_local ThreadTrace *trace_of_thread __attribute__((tls_model("initial-exec")));

void name_events_of(ThreadTrace &t, uint32_t site) noexcept;
// Names the site of the events that the calling thread has recorded since the last call.
inline void name_events(uint32_t site) noexcept {
  if (trace_of_thread != nullptr) name_events_of(*trace_of_thread, site);
}

// Stands around a callback: calls in it name their own events, and not those of the pass that calls back.
class CalledBack {
 public:
  CalledBack() noexcept {
    if (trace_of_thread != nullptr) begin(*trace_of_thread);
  }
  ~CalledBack() {
    if (thread_ != nullptr) end();
  }
  CalledBack(const CalledBack &) = delete;
  CalledBack &operator=(const CalledBack &) = delete;

 private:
  void begin(ThreadTrace &t) noexcept;
  void end() noexcept;
  ThreadTrace *thread_ = nullptr;
  size_t unnamed_ = 0;
  bool inside_ = false;
};

}  // namespace ls
