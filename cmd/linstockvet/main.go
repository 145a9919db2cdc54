// Linstockvet reports misuse of Linstock's scopes, errors and modules; see docs/vet.md. It runs by itself or as a tool
// of go vet:
//
//	linstockvet ./...
//	go vet -vettool=$(which linstockvet) ./...
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/linstock-ml/linstock/vet"
)

func main() { multichecker.Main(vet.Analyzers()...) }
