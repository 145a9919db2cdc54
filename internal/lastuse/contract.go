package lastuse

import (
	"go/token"
	"go/types"
)

// Breach is a place where a method breaks the contract of nn.Layer.
type Breach struct {
	Pos      token.Pos
	Returned bool // it returns a tensor that it keeps; otherwise, it keeps its argument
	What     string
}

// Breaches returns the places where Forward methods of the package's layers certainly break the contract of
// nn.Layer: they keep their argument, or return a tensor that they keep. Analyze must have been called.
func (p *Package) Breaches() (list []Breach) {
	for _, r := range p.roots() {
		if r.decl == nil || r.sig.Recv() == nil || !isForward(r.decl.Name.Name, r.sig) {
			continue
		}
		b := p.newBody(r.decl, nil, r.sig)
		seen := map[token.Pos]bool{}
		b.watched = 1
		b.breach = func(pos token.Pos, returned bool, what string) {
			if !seen[pos] {
				seen[pos] = true
				list = append(list, Breach{Pos: pos, Returned: returned, What: what})
			}
		}
		b.flow(nil)
	}
	return list
}

func isForward(name string, sig *types.Signature) bool {
	return name == "Forward" && !sig.Variadic() && sig.Params().Len() == 1 && sig.Results().Len() == 1 &&
		isTensor(sig.Params().At(0).Type()) && isTensor(sig.Results().At(0).Type())
}
