package distributions_test

import (
	"reflect"
	"testing"

	"github.com/linstock-ml/linstock/distributions"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// TestFailingOperators makes and uses each distribution while one of its operators fails. Only errors may result.
func TestFailingOperators(t *testing.T) {
	leak.Check(t)
	for name, want := range readGolden(t).Cases {
		t.Run(name, func(t *testing.T) {
			_ = tensor.WithScope(func() error {
				p := makeParams(want.Params)
				calls := leak.FailEachCall(t, func() {
					d := cases[name](p)
					x := d.Sample(2)
					d.LogProb(x)
					d.CDF(x)
					d.ICDF(x)
					if d.HasRSample() {
						d.RSample(2)
					}
					d.Entropy()
					d.Perplexity()
					d.Mean()
					d.Mode()
					d.Variance()
					d.Stddev()
					if d.HasEnumerateSupport() {
						d.EnumerateSupport(true)
					}
					d.Expand(2, 3).Sample()
				})
				if calls == 0 {
					t.Error("no call was made")
				}
				return nil
			})
		})
	}
}

// TestOtherBases calls the accessors of each distribution, and its divergence, with the Base of each other one, as a
// struct literal may have it. Only errors may result.
func TestOtherBases(t *testing.T) {
	leak.Check(t)
	golden := readGolden(t).Cases
	_ = tensor.WithScope(func() error {
		bases := map[reflect.Type]distributions.Distribution{reflect.TypeFor[*distributions.Base](): distributions.NewBase("Mine", []int{2}, nil, nil)}
		for name, want := range golden {
			d := cases[name](makeParams(want.Params))
			bases[reflect.TypeOf(d)] = d
		}
		value := reflect.ValueOf(tensor.Ones([]int{1}))
		base := reflect.TypeFor[*distributions.Base]()
		for to := range bases {
			if to == base {
				continue
			}
			for from, d := range bases {
				v := reflect.New(to).Elem()
				if from == base {
					v.Field(0).Set(reflect.ValueOf(d))
				} else {
					v.Field(0).Set(reflect.ValueOf(d).Field(0))
				}
				check := func(what string, f func()) {
					defer func() {
						if p := recover(); p != nil {
							t.Errorf("%v with the Base of %v: %s panics: %v", to, from, what, p)
						}
					}()
					f()
				}
				for i := range to.NumMethod() {
					m := to.Method(i)
					if _, ok := base.MethodByName(m.Name); ok {
						continue
					}
					check(m.Name, func() {
						in := []reflect.Value{value}[:m.Type.NumIn()-1]
						out := v.Method(i).Call(in)[0].Interface()
						x, ok := out.(*tensor.Tensor)
						if from == base && ok && x.Err() == nil {
							t.Errorf("%v with the Base of NewBase has %s", to, m.Name)
						}
					})
				}
				check("KLDivergence", func() {
					x := v.Interface().(distributions.Distribution)
					if err := distributions.KLDivergence(x, x).Err(); (err == nil) && to != from {
						t.Errorf("%v with the Base of %v has a divergence", to, from)
					}
				})
			}
		}
		return nil
	})
}
