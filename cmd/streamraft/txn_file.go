package main

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"

	"github.com/streamraft/streamraft/client"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// txnFile is a transaction as a person writes it; see the help of kv txn.
type txnFile struct {
	Compare []txnCompare `yaml:"compare"`
	Then    []txnStep    `yaml:"then"`
	Else    []txnStep    `yaml:"else"`
}

type txnCompare struct {
	Key         *string      `yaml:"key"`
	KeyBase64   *string      `yaml:"key_base64"`
	Value       *string      `yaml:"value"`
	ValueBase64 *string      `yaml:"value_base64"`
	Exists      *bool        `yaml:"exists"`
	Revision    *txnRevision `yaml:"revision"`
}

type txnRevision struct {
	Equal    *uint64 `yaml:"equal"`
	NotEqual *uint64 `yaml:"not_equal"`
	Less     *uint64 `yaml:"less"`
	Greater  *uint64 `yaml:"greater"`
}

type txnStep struct {
	Put          *txnPut   `yaml:"put"`
	Get          *string   `yaml:"get"`
	GetBase64    *string   `yaml:"get_base64"`
	Delete       *string   `yaml:"delete"`
	DeleteBase64 *string   `yaml:"delete_base64"`
	DeleteRange  *txnRange `yaml:"delete_range"`
}

type txnPut struct {
	Key         *string `yaml:"key"`
	KeyBase64   *string `yaml:"key_base64"`
	Value       *string `yaml:"value"`
	ValueBase64 *string `yaml:"value_base64"`
}

type txnRange struct {
	Start        *string `yaml:"start"`
	StartBase64  *string `yaml:"start_base64"`
	End          *string `yaml:"end"`
	EndBase64    *string `yaml:"end_base64"`
	Prefix       *string `yaml:"prefix"`
	PrefixBase64 *string `yaml:"prefix_base64"`
}

// parseTxn reads a transaction. Unknown fields are errors.
func parseTxn(data []byte) (*kvv1.Txn, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	var file txnFile
	if err := decoder.Decode(&file); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the transaction is empty")
		}
		return nil, err
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the transaction")
	}
	txn := &kvv1.Txn{}
	for i, compare := range file.Compare {
		built, err := compare.build()
		if err != nil {
			return nil, fmt.Errorf("compare, entry %d: %w", i+1, err)
		}
		txn.Compares = append(txn.Compares, built)
	}
	for _, branch := range []struct {
		name  string
		steps []txnStep
		into  *[]*kvv1.TxnOperation
	}{{"then", file.Then, &txn.Success}, {"else", file.Else, &txn.Failure}} {
		for i, step := range branch.steps {
			built, err := step.build()
			if err != nil {
				return nil, fmt.Errorf("%s, entry %d: %w", branch.name, i+1, err)
			}
			*branch.into = append(*branch.into, built)
		}
	}
	if len(txn.Success)+len(txn.Failure) == 0 {
		return nil, errors.New("neither then nor else has a step")
	}
	return txn, nil
}

func (c *txnCompare) build() (*kvv1.Compare, error) {
	key, err := need("key", c.Key, c.KeyBase64)
	if err != nil {
		return nil, err
	}
	value, hasValue, err := oneOf("value", c.Value, c.ValueBase64)
	if err != nil {
		return nil, err
	}
	if count(hasValue, c.Exists != nil, c.Revision != nil) != 1 {
		return nil, errors.New("needs exactly one of value, exists and revision")
	}
	switch {
	case hasValue:
		return client.CompareValue(key, value), nil
	case c.Exists != nil:
		return client.CompareExists(key, *c.Exists), nil
	}
	r := c.Revision
	if count(r.Equal != nil, r.NotEqual != nil, r.Less != nil, r.Greater != nil) != 1 {
		return nil, errors.New("revision needs exactly one of equal, not_equal, less and greater")
	}
	switch {
	case r.Equal != nil:
		return client.CompareRevision(key, kvv1.RevisionCompare_OPERATOR_EQUAL, *r.Equal), nil
	case r.NotEqual != nil:
		return client.CompareRevision(key, kvv1.RevisionCompare_OPERATOR_NOT_EQUAL, *r.NotEqual), nil
	case r.Less != nil:
		return client.CompareRevision(key, kvv1.RevisionCompare_OPERATOR_LESS, *r.Less), nil
	}
	return client.CompareRevision(key, kvv1.RevisionCompare_OPERATOR_GREATER, *r.Greater), nil
}

func (s *txnStep) build() (*kvv1.TxnOperation, error) {
	get, hasGet, err := oneOf("get", s.Get, s.GetBase64)
	if err != nil {
		return nil, err
	}
	del, hasDelete, err := oneOf("delete", s.Delete, s.DeleteBase64)
	if err != nil {
		return nil, err
	}
	if count(s.Put != nil, hasGet, hasDelete, s.DeleteRange != nil) != 1 {
		return nil, errors.New("needs exactly one of put, get, delete and delete_range")
	}
	switch {
	case hasGet:
		return client.TxnGet(get), nil
	case hasDelete:
		return client.TxnDelete(del), nil
	case s.DeleteRange != nil:
		return s.DeleteRange.build()
	}
	key, err := need("key", s.Put.Key, s.Put.KeyBase64)
	if err != nil {
		return nil, err
	}
	value, err := need("value", s.Put.Value, s.Put.ValueBase64)
	if err != nil {
		return nil, err
	}
	return client.TxnPut(key, value), nil
}

func (r *txnRange) build() (*kvv1.TxnOperation, error) {
	start, hasStart, err := oneOf("start", r.Start, r.StartBase64)
	if err != nil {
		return nil, err
	}
	end, hasEnd, err := oneOf("end", r.End, r.EndBase64)
	if err != nil {
		return nil, err
	}
	prefix, hasPrefix, err := oneOf("prefix", r.Prefix, r.PrefixBase64)
	if err != nil {
		return nil, err
	}
	switch {
	case hasPrefix && (hasStart || hasEnd), !hasPrefix && !hasStart && !hasEnd:
		return nil, errors.New("delete_range needs prefix, or start and end")
	case hasPrefix:
		return client.TxnDeleteRange(prefix, client.PrefixEnd(prefix)), nil
	}
	return client.TxnDeleteRange(start, end), nil
}

// oneOf returns the data of a field that is text or base64, and whether it is
// there.
func oneOf(name string, text, encoded *string) (data []byte, ok bool, err error) {
	switch {
	case text != nil && encoded != nil:
		return nil, false, fmt.Errorf("both %s and %s_base64", name, name)
	case text != nil:
		return []byte(*text), true, nil
	case encoded != nil:
		if data, err = base64.StdEncoding.DecodeString(*encoded); err != nil {
			return nil, false, fmt.Errorf("%s_base64: %w", name, err)
		}
		return data, true, nil
	}
	return nil, false, nil
}

func need(name string, text, encoded *string) ([]byte, error) {
	data, ok, err := oneOf(name, text, encoded)
	if err == nil && !ok {
		err = fmt.Errorf("%s is missing", name)
	}
	return data, err
}

func count(conditions ...bool) (n int) {
	for _, c := range conditions {
		if c {
			n++
		}
	}
	return n
}
