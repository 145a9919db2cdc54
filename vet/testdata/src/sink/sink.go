package sink

import (
	"errors"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

func step(loss *tensor.Tensor, opt *optim.Optimizer) error {
	loss.Backward() // want `the error of Backward is dropped`
	opt.ZeroGrad()
	if loss != nil {
		opt.Step() // want `the error of Step is dropped`
	}
	checkpoint.Save("x", nil) // want `the error of checkpoint.Save is dropped`
	return nil
}

func two(loss *tensor.Tensor) (int, error) {
	loss.Backward() // want `the error of Backward is dropped`
	return 0, nil
}

func values(t *tensor.Tensor) {
	v, _ := t.Item()                // want `the error of Item is dropped: v is valid only if it is nil`
	d, _ := tensor.Data[float32](t) // want `the error of tensor.Data is dropped`
	var i, _ = tensor.Item[int](t)  // want `the error of tensor.Item is dropped`
	_, _, _ = v, d, i
	_, _ = t.Item()
	w, err := t.Item()
	_, _ = w, err
}

func scopes() {
	s, err := tensor.NewScope()
	if err != nil {
		return
	}
	defer s.Close()
	f, _ := checkpoint.Load("x") // want `the error of checkpoint.Load is dropped`
	defer f.Close()
	tensor.WithScope(func() error { return nil }) // want `the error of tensor.WithScope is dropped`
	s.Close()                                     // want `the error of Close is dropped`
	go f.Close()                                  // want `the error of Close is dropped`
	defer checkpoint.Save("x", nil)               // want `the error of checkpoint.Save is dropped`
	_ = tensor.WithScope(func() error { return nil })
}

func loops(l *data.Loader) (n int) {
	for b := range l.Batches() { // want `the error of Batches is dropped`
		n += b.Size
	}
	for range l.Batches() { // want `the error of Batches is dropped`
		n++
	}
	for b, _ := range l.Batches() { // want `the error of Batches is dropped`
		n += b.Size
	}
	for b, err := range l.Batches() {
		if err != nil {
			return 0
		}
		n += b.Size
	}
	for range l.Sizes() {
		n++
	}
	return n
}

func silenced(t *tensor.Tensor) {
	t.Backward() //linstockvet:ignore sinkerr the scope's Close tells
	//linstockvet:ignore sinkerr it cannot fail here
	t.Backward()
	//linstockvet:ignore sinkerr
	t.Backward() // want `the error of Backward is dropped`
	//linstockvet:ignore iterpull another check
	t.Backward() // want `the error of Backward is dropped`
}

type own struct{}

func (own) Step() error { return errors.New("not Linstock's") }

func others() { own{}.Step() }

func ranks() {
	g, _ := dist.Init() // want `the error of dist.Init is dropped`
	defer g.Close()
	g.Barrier() // want `the error of Barrier is dropped`
	g.Close()   // want `the error of Close is dropped`
}
