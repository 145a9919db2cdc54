// Package tensor stands in for Linstock's: its names, and the ways in which it holds handles.
package tensor

import (
	"errors"

	"github.com/linstock-ml/linstock/cshim"
)

type Tensor struct{ h cshim.Handle }

type Scope struct{}

func NewScope() (*Scope, error)            { return &Scope{}, nil }
func (s *Scope) Close() error              { return nil }
func (s *Scope) Len() int                  { return 0 }
func (s *Scope) Adopt(ts ...*Tensor) error { return nil }
func (s *Scope) Owns(t *Tensor) bool       { return false }

func WithScope(f func() error) error                         { return f() }
func Tidy(f func() *Tensor) *Tensor                          { return f() }
func TidyAll(f func() ([]*Tensor, error)) ([]*Tensor, error) { return f() }

func Replace(h **Tensor, t *Tensor) error { return nil }

func Zeros(shape ...int) *Tensor { return &Tensor{} }

func (t *Tensor) Keep() *Tensor                  { return t }
func (t *Tensor) MoveOut() *Tensor               { return t }
func (t *Tensor) Alias() *Tensor                 { return &Tensor{} }
func (t *Tensor) Mul(v any) *Tensor              { return &Tensor{} }
func (t *Tensor) Mul_(v any) *Tensor             { return t }
func (t *Tensor) Split(n int) ([]*Tensor, error) { return nil, nil }
func (t *Tensor) Release()                       {}
func (t *Tensor) Err() error                     { return nil }
func (t *Tensor) Backward() error                { return nil }
func (t *Tensor) Item() (float64, error)         { return 0, nil }
func (t *Tensor) SetGrad(g *Tensor) error        { return nil }

func (t *Tensor) RegisterHook(f func(grad *Tensor) (*Tensor, error)) (func(), error) {
	return func() {}, nil
}

func Data[T any](t *Tensor) ([]T, error)     { return nil, nil }
func Item[T any](t *Tensor) (v T, err error) { return v, nil }

var (
	ErrReleased = errors.New("released")
	ErrScope    = errors.New("scope")
)

type Error struct{ Op string }

func (e *Error) Error() string { return e.Op }

type op struct{}

func (t *Tensor) pin() bool            { return t != nil }
func (t *Tensor) unpin()               {}
func (t *Tensor) handle() cshim.Handle { return t.h }

func wrap(h cshim.Handle) *Tensor { return &Tensor{h: h} }
