// Package pacer decides when to collect: when the garbage among a device's tensors is worth a run of the Go collector.
// It is pure: it has no clock, lock or goroutine, and calls nothing. Package vram feeds it and acts on what it answers;
// the simulator in its tests runs it over traces of real programs.
//
// The problem is the Go runtime's with other weights. Native memory that Go objects own is freed when the collector finds
// that they are unreachable. A cycle costs the same however much it frees, a millisecond or, beside a large Go heap, a
// second; an operator may allocate 100 MiB; and what counts is the peak.
//
// # Definitions
//
// Live bytes are those in use on a device, reachable or garbage. A cycle is one run of the collector and the frees that
// follow. It is complete when the collector has ended and nobody is still freeing.
//
//	reachable  live bytes after the last complete cycle, less those allocated since it began
//	yield      bytes allocated since the last cycle began: an estimate of what a cycle frees
//	request    bytes about to be allocated. Inside an operator they are known exactly. Before an operator they are
//	           estimated: a decaying maximum of the small requests that have met the soft limit
//	goal       live bytes that garbage should not exceed: max(Floor, reachable × (1 + percent/100)), at most the limit
//	target     live bytes that the program is known to need: a decaying maximum of reachable + request after each cycle
//	budget     a token bucket of collection time. It fills at a share of the time that passes, 0.05 by default
//	soft limit live bytes past which an allocation waits, and asks with its size
//
// # The rule
//
// A cycle is due before a request if one of these holds:
//
//	live + request > goal    and  yield > 0           and  the budget is not overdrawn by more than burst   (at the goal)
//	live + request > target  and  yield > price       and  the budget has the cost of a cycle               (paid)
//
// The second keeps the peak at what the program needs, where the program's time pays for that; the first bounds garbage
// where it does not. The price is live/24 divided by how full the bucket is after the cycle, 0 to 1. Large requests, of
// live/24 and more, make a peak by themselves, and a backward pass is one operator however long it takes: before those
// the price is 0. Below paidFloor live bytes no cycle is paid for.
//
// The yield is an estimate in both directions: what was allocated may be in use still, and older tensors may have become
// unreachable meanwhile. That is why the price of a large request is 0.
//
// # Invariants
//
//  1. Cycles take share × time + burst at most, as charged, but for those at the hard limit, which package vram runs unasked. Where the
//     goal would need more, beside a large Go heap, there is no goal but the limit.
//  2. Where the budget can pay, live ≤ max(goal, reachable + request).
//  3. A complete cycle after which nothing was allocated is not repeated.
//  4. Only a complete cycle raises reachable. Only a cycle raises the target: what was allocated because a cycle was not
//     worth its price or could not be paid is no measure of what the program needs.
//  5. The target and the request decay by the clock alone, with a half-life of a minute, whatever happens meanwhile: a
//     program that has become smaller is collected again.
//
// # State
//
// Seven words: [Controller] has reachable, target, request, mark and the time of the last decay, for each device;
// [Budget] has the time spent and the scale of costs, for the process. Everything else is computed from those and from
// the live and allocated bytes when a question is asked.
package pacer
