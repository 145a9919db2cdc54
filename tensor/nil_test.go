package tensor

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestNilFunctionsAndOptions tests that nil functions, and options that are pointers, are errors, as is a nil *Error.
func TestNilFunctionsAndOptions(t *testing.T) {
	begin(t)
	dtype := Float64
	const function, option = "a function is needed, got nil", "an option is nil"
	for name, c := range map[string]struct {
		f    func() error
		want string
	}{
		"a nil *Error":         {func() error { return (*Error)(nil) }, "<nil>"},
		"Unwrap of a nil one":  {func() error { return fmt.Errorf("%v", (*Error)(nil).Unwrap()) }, "<nil>"},
		"WithScope":            {func() error { return WithScope(nil) }, function},
		"Tidy":                 {func() error { return Tidy(nil).Err() }, function},
		"TidyAll":              {func() error { _, err := TidyAll(nil); return err }, function},
		"nil":                  {func() error { return Ones([]int{2}, nil).Err() }, option},
		"nil *DType":           {func() error { return Ones([]int{2}, (*DType)(nil)).Err() }, option},
		"nil *Device":          {func() error { return Ones([]int{2}, (*Device)(nil)).Err() }, option},
		"nil *Layout":          {func() error { return Ones([]int{2}, (*Layout)(nil)).Err() }, option},
		"nil *MemoryFormat":    {func() error { return Ones([]int{2}, (*MemoryFormat)(nil)).Err() }, option},
		"nil *Reduction":       {func() error { return Ones([]int{2}, (*Reduction)(nil)).Err() }, option},
		"*DType":               {func() error { return Ones([]int{2}, &dtype).Err() }, "an option is a pointer, of type *tensor.DType"},
		"To(nil *DType)":       {func() error { return Ones([]int{2}).To((*DType)(nil)).Err() }, "got nil"},
		"OptionValue(nil *..)": {func() error { name, _ := OptionValue((*Reduction)(nil)); return fmt.Errorf("named %s", name) }, "named nil"},
	} {
		func() {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("%s panics: %v", name, p)
				}
			}()
			if err := c.f(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
		}()
	}
}

// TestDTypeOfFailedTensors tests that To passes on the error of a failed tensor, also with the dtype of such a one, and that
// the error of an operator with this dtype says whose it is.
func TestDTypeOfFailedTensors(t *testing.T) {
	begin(t)
	scoped(t, func() {
		bad := Ones([]int{2}).MatMul(Ones([]int{3}))
		for what, opts := range map[string][]Option{"its dtype": {bad.DType()}, "a device": {Device{Type: -7}}, "another option": {Dim(1)}, "none": nil} {
			if err := bad.To(opts...).Err(); err == nil || err.Error() != bad.Err().Error() {
				t.Errorf("To, %s: %v, want %v", what, err, bad.Err())
			}
		}
		if err := (*Tensor)(nil).To(Invalid).Err(); !errors.Is(err, ErrNil) {
			t.Errorf("To of nil: %v", err)
		}
		for what, err := range map[string]error{"To": Ones([]int{2}).To(bad.DType()).Err(), "Zeros": Zeros(bad.Shape(), bad.DType()).Err()} {
			if !errors.Is(err, ErrArgument) || !strings.Contains(err.Error(), "invalid (the dtype of a failed tensor)") {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}
