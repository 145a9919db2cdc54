package vram

import (
	"math/big"

	"github.com/nlpodyssey/gopickle/types"

	"github.com/linstock-ml/linstock/internal/pickle"
)

// pickler writes the objects that PyTorch's memory viewer reads.
type pickler struct{ *pickle.Writer }

func newPickler() *pickler { return &pickler{pickle.NewWriter()} }

// fields writes a dict of names and values.
func (p *pickler) fields(kv ...any) {
	p.Dict(len(kv)/2, func(i int) {
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
		p.Str(v)
	case bool:
		p.Bool(v)
	case int:
		p.Int(int64(v))
	case int32:
		p.Int(int64(v))
	case int64:
		p.Int(v)
	case float64:
		p.Float(v)
	case *big.Int:
		if !p.Big(v) {
			p.None()
		}
	case *types.List:
		p.Share(v, func() { p.List(v.Len(), func(i int) { p.value((*v)[i]) }) })
	case *types.Dict:
		p.Share(v, func() {
			p.Dict(v.Len(), func(i int) {
				p.value((*v)[i].Key)
				p.value((*v)[i].Value)
			})
		})
	case *types.Tuple:
		p.Tuple(v.Len(), func(i int) { p.value((*v)[i]) })
	default:
		p.None()
	}
}
