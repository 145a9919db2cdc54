package tensor

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// Names stand in JSON, logs and flags; a tensor is text in logs, and an error in JSON.
func TestTextForms(t *testing.T) {
	begin(t)
	type settings struct {
		DType  DType
		Device Device
	}
	want := settings{BFloat16, CUDA(1)}
	text, err := json.Marshal(want)
	if err != nil || string(text) != `{"DType":"bfloat16","Device":"cuda:1"}` {
		t.Errorf("%s, %v", text, err)
	}
	var got settings
	if err := json.Unmarshal(text, &got); err != nil || got != want {
		t.Errorf("%v, %v", got, err)
	}
	if err := json.Unmarshal([]byte(`{"DType":"float31"}`), &got); !errors.Is(err, ErrArgument) {
		t.Errorf("got %v", err)
	}
	if err := json.Unmarshal([]byte(`{"Device":"gpu"}`), &got); !errors.Is(err, ErrArgument) {
		t.Errorf("got %v", err)
	}
	x := Ones([]int{2})
	defer x.Release()
	var b bytes.Buffer
	slog.New(slog.NewJSONHandler(&b, nil)).Info("", "x", x, "none", (*Tensor)(nil))
	if !strings.Contains(b.String(), `"x":"tensor([1., 1.])","none":"tensor(<nil>)"`) {
		t.Error(b.String())
	}
	if _, err := json.Marshal(map[string]any{"x": x}); !errors.Is(err, ErrArgument) {
		t.Errorf("got %v", err)
	}
}
