package nn

import (
	"errors"
	"reflect"

	"github.com/linstock-ml/linstock/tensor"
)

// Check returns the errors of the constructors that made m and its parts: of every module with a method Err() error.
func Check(m any) error {
	var errs []error
	w := walker{once: true, module: func(m any) {
		if e, ok := m.(interface{ Err() error }); ok {
			if err := e.Err(); err != nil {
				errs = append(errs, err)
			}
		}
	}}
	w.walk(reflect.ValueOf(m), "")
	return errors.Join(errs...)
}

// checked appends a failed tensor that carries Check's error, if there is one.
func checked(m any, named []Named) []Named {
	if err := Check(m); err != nil {
		named = append(named, Named{"", tensor.Failed(err)})
	}
	return named
}
