// Package profiler records how long the operators of a program take, by operator and by line of the program. It
// corresponds to torch.profiler.
//
//	p, err := profiler.Start()
//	if err != nil {
//		return err
//	}
//	loss := nn.CrossEntropy(model.Forward(x), targets)
//	err = loss.Backward()
//	trace, stopErr := p.Stop()
//	if err := errors.Join(err, stopErr); err != nil {
//		return err
//	}
//	fmt.Print(trace.KeyAverages(profiler.GroupByLine()).Table(profiler.SortBy(profiler.SelfCPUTimeTotal), profiler.RowLimit(10)))
//	err = trace.ExportChromeTrace("trace.json") // for chrome://tracing and ui.perfetto.dev
//
// # What is recorded
//
//  1. Each operator that libtorch's dispatcher runs, and each node of a backward pass, is an [Event]: its name in PyTorch,
//     when it began and ended, the memory that it allocated, and the line of the program. Operators that an operator
//     calls are its children. Events, names and nesting are those of PyTorch's profiler.
//  2. The line is that of the call in the program, not in the library. The events of a backward pass have the line of the
//     forward operator whose gradient they compute. Where there is none, as for AccumulateGrad, it is the line that called
//     Backward; on a device, whose backward pass runs on threads of libtorch, it is "unknown". Operators that a hook, a
//     Function or a checkpointed function calls within a backward pass have their own lines.
//  3. A profile covers the process: the operators of all goroutines and those of libtorch's threads. Thread is the OS
//     thread, not the goroutine. One profile is recorded at a time, as with runtime/pprof's CPU profile. (PyTorch's
//     belongs to a thread.)
//  4. Times are the CPU's. An operator of a CUDA device returns when its kernels are queued. For the kernels' times, run
//     the program under NVIDIA's Nsight Systems with [EmitNVTX].
//  5. An operator that the program calls takes about 3 µs more while it is recorded, a part of which counts as the time of
//     the events around it. While nothing is recorded, operators cost what they cost without this package
//     (go test -run - -bench Add ./profiler).
//
// # Reports
//
// [Trace.KeyAverages] sums the events by name and makes PyTorch's table. [Trace.WriteProfile] writes a profile for go
// tool pprof, as vram.WriteProfile does for memory: flame graphs and annotated sources by operator time.
// [Trace.ExportChromeTrace] writes a time line. [RecordFunction] adds a range of the program to all of them.
//
// Long runs record some of their steps: [Schedule], [Profiler.Step] and [OnTraceReady].
package profiler
