package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// A trace is the memory events of a step, for the simulator of internal/pacer. Each line is an event:
//
//	base N         bytes reachable between steps
//	step NAME      the step begins
//	o MICROSECONDS an operator begins, and takes so long; b: a backward pass
//	a N            the operator allocates a block of N bytes; blocks are numbered from 0
//	u N            the program has used block N for the last time: from here on a collection frees its reference
//	f N            libtorch drops its own reference to block N
//
// A block is freed when neither the program nor libtorch references it. Without a u the program references it until the
// step ends. A negative size marks a block that libtorch alone references. When the step ends, a scope releases the blocks
// that are left.
//
// The step is run twice: without collections, and with one before each operator. The blocks that the second run frees
// earlier are those that a collection can free.

// smallest is the least size of a recorded block.
const smallest = 64 << 10

// observer is the policy during a recorded step. It records when operators begin.
type observer struct {
	collect bool
	ops     *[]recordedOp
}

type recordedOp struct {
	before, begin int64 // Unix nanoseconds before and after the collection
	backward      bool
}

func (o observer) Decide(s vram.State) vram.Decision {
	// Before an operator that is not a backward pass, due has just been cleared. It is set for the next operator.
	if due := cshim.SetDue(true); s.Device == vram.CPU && (s.Backward || !due) {
		before := time.Now().UnixNano()
		if o.collect {
			_ = vram.Collect()
		}
		*o.ops = append(*o.ops, recordedOp{before, time.Now().UnixNano(), s.Backward})
	}
	return vram.Decision{}
}

// A recordedBlock is a block of a step and the operators that allocate and free it.
type recordedBlock struct {
	bytes     int64
	op        int // the operator that allocates it
	freed     int // the operator that frees it, or before which a collection does; -1: not freed in this step
	collected bool
	freedAt   int // number of blocks allocated by then
}

// observe runs a step and returns its operators and blocks.
func observe(step func() error, collect bool) (ops []recordedOp, blocks []recordedBlock, err error) {
	if err := vram.RecordHistory(1 << 20); err != nil {
		return nil, nil, err
	}
	cshim.SetDue(true)
	defer vram.SetPolicy(vram.SetPolicy(observer{collect, &ops}))
	begin := time.Now().UnixNano()
	if err := step(); err != nil {
		return nil, nil, err
	}
	end := time.Now().UnixNano()
	events := cshim.HistoryEvents()
	if err := vram.RecordHistory(0); err != nil {
		return nil, nil, err
	}
	ops = append(ops, recordedOp{end, end, false}) // the end of the scope
	live := map[uint64]int{}
	for _, e := range events {
		if e.TimeNS < begin || e.TimeNS > end || e.Bytes < smallest {
			continue
		}
		// The last operator that had begun, or whose collection had begun.
		op, _ := slices.BinarySearchFunc(ops, e.TimeNS, func(o recordedOp, t int64) int { return cmp.Compare(o.before, t+1) })
		op--
		if e.Kind == cshim.Allocated {
			live[e.Address] = len(blocks)
			blocks = append(blocks, recordedBlock{bytes: e.Bytes, op: max(0, op), freed: -1})
		} else if i, ok := live[e.Address]; ok && e.Kind == cshim.Freed {
			delete(live, e.Address)
			b := &blocks[i]
			b.freed, b.freedAt = op, len(blocks)
			b.collected = collect && op >= 0 && e.TimeNS <= ops[op].begin
		}
	}
	for i := range blocks { // freed by the scope
		if b := &blocks[i]; b.freedAt == len(blocks) && b.freed >= len(ops)-2 {
			b.freed = -1
		}
	}
	return ops, blocks, nil
}

// record writes the trace of a task's step to a file.
func record(t task, threads int, path string) error {
	if err := tensor.SetNumThreads(threads); err != nil {
		return err
	}
	if err := tensor.ManualSeed(0); err != nil {
		return err
	}
	step, zero, err := t.step()
	if err != nil {
		return err
	}
	for range 3 {
		if err := step(); err != nil {
			return err
		}
	}
	zero()
	if err := vram.Collect(); err != nil {
		return err
	}
	base, err := vram.Stats(tensor.CPU)
	if err != nil {
		return err
	}
	ops, blocks, err := observe(step, false)
	if err != nil {
		return err
	}
	zero()
	if err := vram.Collect(); err != nil {
		return err
	}
	_, early, err := observe(step, true)
	if err != nil {
		return err
	}
	if len(blocks) != len(early) {
		return fmt.Errorf("the step allocates %d blocks, and %d when it is collected", len(blocks), len(early))
	}
	last := len(ops) - 1
	var text bytes.Buffer
	fmt.Fprintf(&text, "base %d\nstep %s %s\n", base.Allocated, t.model, t.mode)
	type moment struct{ op, allocated int }
	unused, given := make([][]int, last), map[moment][]int{}
	unuse := func(op, block int) { unused[max(op, 0)] = append(unused[max(op, 0)], block) }
	for i, b := range blocks {
		e := early[i]
		if b.bytes != e.bytes {
			return fmt.Errorf("block %d has %d bytes, and %d when the step is collected", i, b.bytes, e.bytes)
		}
		switch {
		case b.freed >= 0 && b.freed < last && b.freed <= e.freed: // not by a collection
			blocks[i].bytes = -b.bytes
			given[moment{b.freed, b.freedAt}] = append(given[moment{b.freed, b.freedAt}], i)
		case e.freed >= 0 && e.freed < last && e.collected:
			unuse(e.freed, i)
		case e.freed >= 0 && e.freed < last:
			// A graph referenced the block for longer than the program did. It is not known for how long the program
			// did; most often for one operator.
			unuse(min(b.op+2, e.freed), i)
			given[moment{e.freed, e.freedAt}] = append(given[moment{e.freed, e.freedAt}], i)
		}
	}
	next := 0
	for i, o := range ops[:last] {
		for _, b := range unused[i] {
			fmt.Fprintf(&text, "u %d\n", b)
		}
		kind := "o"
		if o.backward {
			kind = "b"
		}
		fmt.Fprintf(&text, "%s %d\n", kind, (ops[i+1].before-o.begin)/1000)
		free := func() {
			for _, b := range given[moment{i, next}] {
				fmt.Fprintf(&text, "f %d\n", b)
			}
		}
		for free(); next < len(blocks) && blocks[next].op == i; free() {
			fmt.Fprintf(&text, "a %d\n", blocks[next].bytes)
			next++
		}
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	z, _ := gzip.NewWriterLevel(f, gzip.BestCompression)
	if _, err := z.Write(text.Bytes()); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	fmt.Printf("%s: %d operators, %d blocks, %d bytes of text\n", path, last, len(blocks), text.Len())
	return f.Close()
}
