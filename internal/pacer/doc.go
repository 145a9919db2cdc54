// Package pacer decides when to run the Go collector for the native memory that unreachable tensors hold. It has no clock,
// lock or goroutine and no side effects. Package vram passes in the state of a device and carries out the decision. The
// simulator in the package's tests runs it over traces of real programs.
//
// The problem is that of the Go runtime's pacer, with other costs. The native memory of a tensor is freed after the
// collector has found the tensor unreachable. A cycle costs the same however much it frees: a millisecond, or a second if
// the Go heap is large. A single operator may allocate 100 MiB. And the peak matters more than the average.
//
// # Definitions
//
// Live bytes are the bytes in use on a device, by reachable tensors and by garbage. A cycle is one run of the collector and
// the frees that follow. It is complete when the collector has finished and no goroutine is still freeing.
//
//	reachable  live bytes after the last complete cycle, less the bytes allocated since it began
//	yield      bytes allocated since the last cycle began: an estimate of what a cycle frees
//	request    bytes about to be allocated. While an allocation waits they are exact. Before an operator they are an
//	           estimate: a decaying maximum of the small allocations that have waited
//	goal       live bytes that the garbage should not exceed: max(floor, reachable × (1 + percent/100)), at most the
//	           hard limit
//	target     live bytes that the program is known to need: a decaying maximum of reachable + request after each cycle;
//	           at least min(smallHeap, max(minTarget, reachable × (1 + percent/100)))
//	budget     a token bucket of collection time. It fills at a share of the time that the process runs, 0.05 by default,
//	           and a cycle is charged for as long as the process ran during it
//	trigger    live or allocated bytes at which the next question is asked. An allocation that would pass the wait
//	           trigger waits, and asks with its exact size
//
// # The rule
//
// A cycle runs before a request if one of these holds:
//
//	live + request > goal    and  yield > 0      and  the budget is overdrawn by burst at most   (at the goal)
//	live + request > target  and  yield > price  and  the budget has the cost of a cycle         (paid)
//
// Paid cycles keep the peak at what the program needs, as far as the budget goes. Cycles at the goal bound the garbage
// of a program whose budget does not go as far.
//
// The price is live/24 divided by the fill level of the bucket after the cycle, from 0 to 1. It is 0 for large requests,
// of live/24 and more, because each may set a new peak. It is also 0 before a backward pass, which is one operator and may
// run for seconds.
//
// A small heap, of smallHeap live bytes at most, may double before a cycle is paid for, as the Go heap may: tighter cycles
// would free little each. Its cycles leave a reserve of the budget. While there is no more than the reserve, the target is
// smallHeap at least. So a program that makes garbage faster than the budget pays for grows to smallHeap, and then has what
// it needs to stay there.
//
// The yield may be too high, because new tensors may still be in use, or too low, because older tensors may have become
// unreachable. The price of a large request is 0 for the second reason.
//
// # Invariants
//
//  1. Cycles take share × time + burst at most, as charged, in time that the process runs. Cycles at the hard limit, which
//     package vram runs without asking, are exempt. While the goal needs more, with a large Go heap or gigabytes of
//     garbage a second, only the hard limit bounds the live bytes.
//  2. While the budget can pay, live ≤ max(goal, reachable + request).
//  3. A complete cycle is not repeated before something was allocated.
//  4. Only a complete cycle raises reachable, and only a cycle raises the target. Bytes that were live because no cycle was
//     worth its price, or because the budget was empty, do not count as needed.
//  5. The target and the request decay with time alone: they are halved once a minute. So a program that becomes
//     smaller is collected again, and one whose steps all need the same exceeds its target once a minute, and does not
//     pay in each step for a cycle that finds nothing.
//
// # State
//
// Seven words. Each device has a [Controller] with reachable, target, request, mark and the time of the last halving. The
// process has a [Budget] with the time spent and the scale of costs. Everything else is computed from these and from the
// device's counters when a question is asked.
package pacer
