// Package registry makes the RemoteStorageManager that a process's settings name.
//
// It owns the names of stores and the settings behind rsm.config., with their defaults and what is said about wrong ones. It
// must never talk to a store.
package registry

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"chancery/services/objectstore"
	"chancery/services/objectstore/blob"
	"chancery/services/objectstore/dirstore"
	"chancery/services/objectstore/miniostore"
	"chancery/services/objectstore/s3store"
	"chancery/services/objectstore/segmentobject"
	"chancery/services/objectstore/segmentstore"
)

// ClassNameConfig is the setting that names the store.
const ClassNameConfig = "remote.log.storage.manager.class.name"

// Factory makes a manager of a store.
type Factory func(ctx context.Context, config *Config, deps segmentstore.Deps) (objectstore.RemoteStorageManager, error)

// Table is the stores by name.
type Table map[string]Factory

// Stores are the stores that Chancery has.
func Stores() Table {
	return Table{
		"dir": func(_ context.Context, config *Config, deps segmentstore.Deps) (objectstore.RemoteStorageManager, error) {
			if err := config.checkDir(); err != nil {
				return nil, err
			}
			store, err := dirstore.Open(config.DirPath)
			if err != nil {
				return nil, err
			}
			named := *config
			named.Store.Layout = segmentobject.ByTopicName
			named.Store.PutDollars, named.Store.GetDollars = 0, 0
			return managed(store, &named, deps)
		},
		"s3": func(ctx context.Context, config *Config, deps segmentstore.Deps) (objectstore.RemoteStorageManager, error) {
			store, err := s3store.Open(ctx, config.s3Settings())
			if err != nil {
				return nil, err
			}
			return managed(store, config, deps)
		},
		"minio": func(_ context.Context, config *Config, deps segmentstore.Deps) (objectstore.RemoteStorageManager, error) {
			store, err := miniostore.Open(config.s3Settings())
			if err != nil {
				return nil, err
			}
			return managed(store, config, deps)
		},
	}
}

// managed makes a manager of a store, and closes the store when that fails.
func managed(store blob.Store, config *Config, deps segmentstore.Deps) (objectstore.RemoteStorageManager, error) {
	m, err := segmentstore.New(store, config.Store, deps)
	if err != nil {
		store.Close()
		return nil, err
	}
	return m, nil
}

// Open makes the manager of a name.
func (t Table) Open(ctx context.Context, name string, config *Config, deps segmentstore.Deps) (objectstore.RemoteStorageManager, error) {
	factory, ok := t[name]
	if !ok {
		return nil, unknownStore(name, t)
	}
	m, err := factory(ctx, config, deps)
	if err != nil {
		return nil, fmt.Errorf("remote storage %s: %w", name, err)
	}
	return m, nil
}

func unknownStore(name string, t Table) error {
	return fmt.Errorf("%s is %q, want one of %s", ClassNameConfig, name, strings.Join(slices.Sorted(maps.Keys(t)), ", "))
}
