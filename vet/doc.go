// Package vet reports misuse of Linstock's scopes, errors and modules at build time. Its analyzers use the framework of
// golang.org/x/tools/go/analysis, so that they run in go vet, editors and linters. The command is cmd/linstockvet:
//
//	go install github.com/linstock-ml/linstock/cmd/linstockvet@latest
//	go vet -vettool=$(which linstockvet) ./...
//
// docs/vet.md shows what each analyzer reports. An analyzer sees one package at a time and does not know what functions
// of other packages do with a value. It therefore reports only code that is certainly or very likely wrong. The library
// reports what the analyzers miss at run time (tensor.ErrReleased, tensor.ErrScope).
//
// A comment on the line of a wrong report, or on the line above, silences it:
//
//	//linstockvet:ignore scopeescape the receiver copies it before the scope closes
package vet

import "golang.org/x/tools/go/analysis"

// Analyzers returns all analyzers of the package.
func Analyzers() []*analysis.Analyzer {
	return []*analysis.Analyzer{KeepAlive, ScopeEscape, ScopeClose, SinkErr, UnusedResult, IterPull, Module, ReclaimLock, LayerContract}
}
