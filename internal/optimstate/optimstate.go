// Package optimstate divides the state of an optimizer into tensors with names and other values, as checkpoints store it.
package optimstate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// Flatten separates the tensors of an optimizer's state, under names such as "state.3.exp_avg" (of the fourth parameter)
// or "state.0.old_dirs.2" (the third of a list), from the rest.
func Flatten(s optim.State) (plain map[string]any, tensors map[string]*tensor.Tensor) {
	tensors = map[string]*tensor.Tensor{}
	state := map[string]any{}
	for number, values := range s.State {
		rest := map[string]any{}
		for name, v := range values {
			path := "state." + strconv.Itoa(number) + "." + name
			switch v := v.(type) {
			case *tensor.Tensor:
				tensors[path] = v
			case []any:
				list := slices.Clone(v)
				for i, x := range v {
					if t, ok := x.(*tensor.Tensor); ok {
						tensors[path+"."+strconv.Itoa(i)], list[i] = t, nil
					}
				}
				rest[name] = list
			default:
				rest[name] = v
			}
		}
		state[strconv.Itoa(number)] = rest
	}
	groups := make([]any, len(s.ParamGroups))
	for i, g := range s.ParamGroups {
		groups[i] = g
	}
	return map[string]any{"state": state, "param_groups": groups}, tensors
}

// Unflatten undoes Flatten.
func Unflatten(plain map[string]any, tensors map[string]*tensor.Tensor) (s optim.State, err error) {
	s.State = map[int]map[string]any{}
	state, _ := plain["state"].(map[string]any)
	for key, v := range state {
		number, err := strconv.Atoi(key)
		values, ok := v.(map[string]any)
		if err != nil || !ok {
			return s, fmt.Errorf("the optimizer's state of parameter %.80q is damaged", key)
		}
		s.State[number] = values
	}
	groups, _ := plain["param_groups"].([]any)
	for i, v := range groups {
		group, ok := v.(map[string]any)
		if !ok {
			return s, fmt.Errorf("the optimizer's group %d is damaged", i)
		}
		s.ParamGroups = append(s.ParamGroups, group)
	}
	for path, t := range tensors {
		of, name, ok := strings.Cut(strings.TrimPrefix(path, "state."), ".")
		number, err := strconv.Atoi(of)
		values := s.State[number]
		if err != nil || !ok || values == nil {
			return s, fmt.Errorf("the optimizer's %.80q does not belong to a parameter", path)
		}
		if at := strings.LastIndex(name, "."); at > 0 {
			list, isList := values[name[:at]].([]any)
			if i, err := strconv.Atoi(name[at+1:]); err == nil && isList && i >= 0 && i < len(list) {
				list[i] = t
				continue
			}
		}
		values[name] = t
	}
	return s, nil
}
