package dist

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/refuse"
)

// ErrToken: a process does not know the job's token.
var ErrToken = errors.New("the token of the job is not known")

// Token makes Init fail with ErrToken, before it connects to the other ranks, unless all of them prove that they know the same
// token: a process of another job, or one that is not of a job, cannot take the place of a rank. The token itself is
// not sent. All ranks must give it; ranks in Python cannot. The default is the environment variable LINSTOCK_TOKEN; without a
// token nothing is proved. It does not protect the store and the connections, see the package documentation.
func Token(secret string) Option { return optionFunc(func(o *options) { o.token = secret }) }

// prove proves to the other ranks that this one knows the token, and verifies their proofs: each rank writes a random number,
// and then a code of all ranks' numbers and of its rank under the token.
func (g *Group) prove(ctx context.Context, op, token string) error {
	if token == "" {
		return nil
	}
	key := func(what string, rank int) string { return fmt.Sprintf("linstock/token/%s/%d", what, rank) }
	get := func(what string, rank int) ([]byte, error) {
		v, err := await(ctx, op, g.job.store, g.timeout, func(n cshim.Store, ms int64, cancel *int32) ([]byte, error) {
			return n.Get(key(what, rank), ms, cancel)
		}, func([]byte) {})
		if !errors.Is(err, ErrTimeout) {
			return v, err
		}
		come, _ := await(context.Background(), op, g.job.store, grace, func(n cshim.Store, _ int64, _ *int32) (bool, error) {
			return n.Check(addressKey(rank))
		}, func(bool) {})
		if come {
			err = refuse.Error(op, errors.Join(ErrToken, ErrTimeout), "rank %d did not prove in time that it knows the token of the job", rank)
		}
		return nil, err
	}
	number := make([]byte, 32)
	_, _ = rand.Read(number) // never fails
	if err := g.job.store.setWithin(ctx, op, g.timeout, key("number", g.rank), number); err != nil {
		return err
	}
	all := sha256.New()
	for r := range g.size {
		v, err := get("number", r)
		if err != nil {
			return err
		}
		if r == g.rank && !bytes.Equal(v, number) {
			return refuse.Error(op, ErrToken, "another process claims to be rank %d", r)
		}
		one := sha256.Sum256(v)
		_, _ = all.Write(one[:])
	}
	proof := func(rank int) []byte {
		h := hmac.New(sha256.New, []byte(token))
		_, _ = h.Write(binary.BigEndian.AppendUint64([]byte("linstock rank "), uint64(rank)))
		_, _ = h.Write(all.Sum(nil))
		return h.Sum(nil)
	}
	if err := g.job.store.setWithin(ctx, op, g.timeout, key("proof", g.rank), proof(g.rank)); err != nil {
		return err
	}
	var unknown []int
	for r := range g.size {
		v, err := get("proof", r)
		if err != nil {
			return err
		}
		if !hmac.Equal(v, proof(r)) {
			unknown = append(unknown, r)
		}
	}
	if len(unknown) != 0 {
		return refuse.Error(op, ErrToken, "ranks %v have another token than rank %d", unknown, g.rank)
	}
	return nil
}
