// Package checkpoint stands in for Linstock's.
package checkpoint

import "github.com/linstock-ml/linstock/tensor"

type File struct{}

func Load(path string) (*File, error)                      { return &File{}, nil }
func (f *File) Close() error                               { return nil }
func (f *File) Tensor(name string) *tensor.Tensor          { return nil }
func Save(path string, ts map[string]*tensor.Tensor) error { return nil }
func SaveModel(path string, model any) error               { return nil }
