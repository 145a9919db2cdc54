// Package vet finds misuse of Linstock's lifetimes before a program runs. Its analyzers are of golang.org/x/tools'
// go/analysis, so that they work in go vet, in editors and in linters; cmd/linstockvet is the command:
//
//	go install github.com/linstock-ml/linstock/cmd/linstockvet@latest
//	go vet -vettool=$(which linstockvet) ./...
//
// docs/vet.md shows what each says. They see one package at a time and know nothing of what a value did in others, so
// they report what is surely or most likely wrong and are silent about the rest; the library refuses at run time what
// they miss (tensor.ErrReleased, tensor.ErrScope).
//
// A report that is wrong is silenced on its line or the one above:
//
//	//linstockvet:ignore scopeescape the receiver copies it before the scope closes
package vet

import "golang.org/x/tools/go/analysis"

// Analyzers are all of them.
func Analyzers() []*analysis.Analyzer {
	return []*analysis.Analyzer{KeepAlive, ScopeEscape, ScopeClose, SinkErr, UnusedResult, IterPull, Module, ReclaimLock}
}
