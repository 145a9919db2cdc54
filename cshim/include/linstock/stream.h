/* Streams, events and graphs of devices other than the CPU. */
#ifndef LINSTOCK_LINSTOCK_STREAM_H_
#define LINSTOCK_LINSTOCK_STREAM_H_

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- streams ----
 * A stream is named by its device and a number of libtorch's; 0 is the default stream of the device. Streams
 * belong to libtorch, which never destroys them. Functions that wait for a stream or work on it return
 * LS_ERR_CAPTURE, and leave the capture as it was, while another thread captures a graph on it. */
/* A stream of libtorch's pool; a lower priority value is a higher priority. The pool has 32 streams for each
 * device and priority and returns them in turn. */
LS_API ls_error *ls_stream_new(int32_t device, int32_t priority, int64_t *stream) LS_NOEXCEPT;
/* The current stream of a device on the calling thread. ls_mode_push sets it (LS_MODE_STREAM). */
LS_API ls_error *ls_stream_current(int32_t device, int64_t *stream) LS_NOEXCEPT;
/* Whether the work that was given to the stream is done: 1 or 0. */
LS_API ls_error *ls_stream_query(int32_t device, int64_t stream, int32_t *done) LS_NOEXCEPT;
LS_API ls_error *ls_stream_synchronize(int32_t device, int64_t stream) LS_NOEXCEPT;
/* Records that the stream uses t's memory: once t is freed, its memory is reused only after the work that the
 * stream has at that time is done. */
LS_API ls_error *ls_stream_record(ls_tensor t, int32_t device, int64_t stream) LS_NOEXCEPT;
/* Gives a copy of from to a stream of to's device, and does not wait for it if from's memory is pinned. It does
 * not record the stream: before to is freed, the stream that it was made on must wait for the copy. */
LS_API ls_error *ls_stream_copy(ls_tensor to, ls_tensor from, int32_t device, int64_t stream) LS_NOEXCEPT;

/* ---- events ----
 * An ls_stream_event is freed once by ls_event_free. One thread at a time may use it. */
typedef uintptr_t ls_stream_event;
/* device is any device of the type that the event is for. timing: for ls_event_elapsed. */
LS_API ls_error *ls_event_new(int32_t device, int32_t timing, ls_stream_event *event) LS_NOEXCEPT;
LS_API void ls_event_free(ls_stream_event event) LS_NOEXCEPT;
LS_API ls_error *ls_event_record(ls_stream_event event, int32_t device, int64_t stream) LS_NOEXCEPT;
/* Work given to the stream from now on waits for the event. Nothing if the event was never recorded. If it was
 * recorded in a capture, the stream becomes part of that capture: LS_ERR_CAPTURE on a thread that takes no part in
 * it, and for a stream that is the current one of another thread. */
LS_API ls_error *ls_event_wait(ls_stream_event event, int32_t device, int64_t stream) LS_NOEXCEPT;
/* 1 if it was never recorded or the work before it is done, else 0. */
LS_API ls_error *ls_event_query(ls_stream_event event, int32_t *done) LS_NOEXCEPT;
LS_API ls_error *ls_event_synchronize(ls_stream_event event) LS_NOEXCEPT;
LS_API ls_error *ls_event_elapsed(ls_stream_event from, ls_stream_event to, double *milliseconds) LS_NOEXCEPT;

/* ---- graphs ----
 * An ls_graph is freed once by ls_graph_free. One thread at a time may use it. */
typedef uintptr_t ls_graph;
/* A memory pool of graphs; two zeros: a new one. */
typedef struct ls_pool {
  uint64_t first, second;
} ls_pool;
/* Begins to capture, on the calling thread, the work given to its current stream of the device, which must not be
 * the default one; other threads go on as before. While a graph is captured, pinned memory that is freed stays
 * until the capture ends, and so do the caches that ls_memory_empty_cache would empty. LS_ERR_CAPTURE if a graph
 * is already being captured on the device or by the thread, and if LS_MODE_STREAM has made the stream the current
 * one of another thread. */
LS_API ls_error *ls_graph_begin(int32_t device, const ls_pool *pool, ls_graph *graph) LS_NOEXCEPT;
/* Ends the capture: on the same thread, with the same current stream. After an error the graph can only be
 * abandoned and freed. */
LS_API ls_error *ls_graph_end(ls_graph graph, ls_pool *pool) LS_NOEXCEPT;
/* Ends a capture whose graph is not wanted, on the same thread. Nothing if it has ended. */
LS_API void ls_graph_abandon(ls_graph graph) LS_NOEXCEPT;
/* Runs the captured work on the calling thread's current stream of the graph's device. */
LS_API ls_error *ls_graph_replay(ls_graph graph) LS_NOEXCEPT;
/* The memory of its pool can be reused when all graphs that share it and all tensors in it are freed. */
LS_API void ls_graph_free(ls_graph graph) LS_NOEXCEPT;
/* Whether the calling thread is capturing a graph, or autograd runs a part of a captured backward pass on it. */
LS_API int32_t ls_graph_capturing(void) LS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_LINSTOCK_STREAM_H_ */
