package vram

import (
	"encoding/binary"
	"math"
	"math/big"

	"github.com/nlpodyssey/gopickle/types"
)

// pickler writes Python's pickle format, protocol 2, with the operations that PyTorch's memory viewer reads. Go's pickle
// libraries cannot write shared values once, and a history refers to the same stacks thousands of times.
type pickler struct {
	out  []byte
	next uint32
	memo map[any]uint32 // of strings and of the caller's shared values
}

func newPickler() *pickler {
	return &pickler{out: []byte{0x80, 2}, memo: map[any]uint32{}}
}

func (p *pickler) op(b ...byte) { p.out = append(p.out, b...) }

func (p *pickler) uint32(n uint32) { p.out = binary.LittleEndian.AppendUint32(p.out, n) }

// share calls f to write the value of key the first time, and writes a reference to it after that.
func (p *pickler) share(key any, f func()) {
	if id, ok := p.memo[key]; ok {
		if id < 256 {
			p.op('h', byte(id))
			return
		}
		p.op('j')
		p.uint32(id)
		return
	}
	f()
	id := p.next
	p.next++
	p.memo[key] = id
	if id < 256 {
		p.op('q', byte(id))
		return
	}
	p.op('r')
	p.uint32(id)
}

func (p *pickler) str(s string) {
	p.share(s, func() {
		p.op('X')
		p.uint32(uint32(len(s)))
		p.out = append(p.out, s...)
	})
}

func (p *pickler) int(n int64) {
	switch {
	case n >= 0 && n < 1<<8:
		p.op('K', byte(n))
	case n >= 0 && n < 1<<16:
		p.op('M', byte(n), byte(n>>8))
	case n >= math.MinInt32 && n <= math.MaxInt32:
		p.op('J')
		p.uint32(uint32(n))
	default:
		p.op(0x8a, 8)
		p.out = binary.LittleEndian.AppendUint64(p.out, uint64(n))
	}
}

func (p *pickler) float(f float64) {
	p.op('G')
	p.out = binary.BigEndian.AppendUint64(p.out, math.Float64bits(f))
}

func (p *pickler) bool(b bool) {
	if b {
		p.op(0x88)
	} else {
		p.op(0x89)
	}
}

// list writes n elements in batches of a thousand, as Python does: readers push a batch on a stack.
func (p *pickler) list(n int, f func(i int)) {
	p.op(']')
	p.batches(n, 'e', f)
}

// dict writes n pairs; f writes a key and a value.
func (p *pickler) dict(n int, f func(i int)) {
	p.op('}')
	p.batches(n, 'u', f)
}

func (p *pickler) batches(n int, end byte, f func(i int)) {
	for at := 0; at < n; at += 1000 {
		p.op('(')
		for i := at; i < min(n, at+1000); i++ {
			f(i)
		}
		p.op(end)
	}
}

// fields writes a dict of names and values.
func (p *pickler) fields(kv ...any) {
	p.dict(len(kv)/2, func(i int) {
		p.value(kv[2*i])
		p.value(kv[2*i+1])
	})
}

// value writes a Go value, or a value that gopickle has read. Other types become None.
func (p *pickler) value(v any) {
	switch v := v.(type) {
	case func():
		v()
	case string:
		p.str(v)
	case bool:
		p.bool(v)
	case int:
		p.int(int64(v))
	case int32:
		p.int(int64(v))
	case int64:
		p.int(v)
	case float64:
		p.float(v)
	case *big.Int:
		p.big(v)
	case *types.List:
		p.share(v, func() { p.list(v.Len(), func(i int) { p.value((*v)[i]) }) })
	case *types.Dict:
		p.share(v, func() {
			p.dict(v.Len(), func(i int) {
				p.value((*v)[i].Key)
				p.value((*v)[i].Value)
			})
		})
	case *types.Tuple:
		p.op('(')
		for _, e := range *v {
			p.value(e)
		}
		p.op('t')
	default:
		p.op('N')
	}
}

// big writes an address of more than 63 bits. Negative numbers do not occur.
func (p *pickler) big(n *big.Int) {
	b := n.Bytes()
	if n.Sign() < 0 || len(b) > 254 {
		p.op('N')
		return
	}
	p.op(0x8a, byte(len(b)+1))
	for i := len(b) - 1; i >= 0; i-- {
		p.op(b[i])
	}
	p.op(0)
}

func (p *pickler) bytes() []byte { return append(p.out, '.') }
