// Package dist stands in for Linstock's.
package dist

type Group struct{}

func (g *Group) Barrier() error { return nil }
func (g *Group) Close() error   { return nil }

func Init() (*Group, error) { return nil, nil }
