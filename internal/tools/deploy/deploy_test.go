// Package deploy checks the files in deploy/ by the schemas of Kubernetes, Kubeflow and Compose.
package deploy

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/santhosh-tekuri/jsonschema/v6"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

const dir = "../../../deploy"

// The module whose manifests have the schema of a PyTorchJob, and the hash of its content.
const (
	operator    = "github.com/kubeflow/training-operator@v1.9.3"
	operatorSum = "h1:aaSHqskOtCY8Dn8sVd+l9p5XAczW6O0nYMPjVLAw/lc="
)

// jobSchema returns the schema of PyTorchJobs, in which fields that it does not name are errors.
func jobSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	out, err := exec.Command("go", "mod", "download", "-json", operator).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var module struct{ Dir, Sum string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	if module.Sum != operatorSum {
		t.Fatalf("%s has the hash %s, want %s", operator, module.Sum, operatorSum)
	}
	text, err := os.ReadFile(filepath.Join(module.Dir, "manifests/base/crds/kubeflow.org_pytorchjobs.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema map[string]any }
			}
		}
	}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	for _, v := range crd.Spec.Versions {
		if v.Name != "v1" {
			continue
		}
		strict(v.Schema.OpenAPIV3Schema)
		c := jsonschema.NewCompiler()
		if err := c.AddResource("pytorchjob.json", v.Schema.OpenAPIV3Schema); err != nil {
			t.Fatal(err)
		}
		s, err := c.Compile("pytorchjob.json")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	t.Fatal("there is no version v1")
	return nil
}

// strict forbids fields that a schema does not name, except in metadata, whose fields it does not list.
func strict(schema map[string]any) {
	properties, ok := schema["properties"].(map[string]any)
	if ok && schema["x-kubernetes-preserve-unknown-fields"] != true {
		schema["additionalProperties"] = false
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if s, ok := schema[key].(map[string]any); ok {
			strict(s)
		}
	}
	for _, p := range properties {
		if s, ok := p.(map[string]any); ok {
			strict(s)
		}
	}
}

// documents returns the documents of a file by kind.
func documents(t *testing.T, name string) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, d := range bytes.Split(text, []byte("\n---\n")) {
		var head struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal(d, &head); err != nil {
			t.Fatal(err)
		}
		all[head.APIVersion+" "+head.Kind] = d
	}
	return all
}

func TestPyTorchJob(t *testing.T) {
	schema := jobSchema(t)
	docs := documents(t, "pytorchjob.yaml")
	if len(docs) != 3 {
		t.Errorf("%d documents", len(docs))
	}
	check := func(text []byte) error {
		j, err := yaml.YAMLToJSONStrict(text)
		if err != nil {
			return err
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(j))
		if err != nil {
			return err
		}
		return schema.Validate(v)
	}
	job := docs["kubeflow.org/v1 PyTorchJob"]
	if err := check(job); err != nil {
		t.Error(err)
	}
	for right, wrong := range map[string]string{"restartPolicy: OnFailure": "restartPolicies: OnFailure", "replicas: 3": "replicas: three", "containers:": "container:", "fsGroup:": "fsgroup:"} {
		if broken := strings.Replace(string(job), right, wrong, 1); check([]byte(broken)) == nil || broken == string(job) {
			t.Errorf("the schema allows %q", wrong)
		}
	}
	var spec struct {
		Spec struct {
			PytorchReplicaSpecs map[string]struct{ Template corev1.PodTemplateSpec }
		}
	}
	if err := yaml.Unmarshal(job, &spec); err != nil {
		t.Fatal(err)
	}
	containers := 0
	for name, r := range spec.Spec.PytorchReplicaSpecs {
		for _, c := range r.Template.Spec.Containers {
			containers++
			threads := corev1.EnvVar{Name: "OMP_NUM_THREADS", Value: c.Resources.Requests.Cpu().String()}
			if c.ImagePullPolicy != corev1.PullIfNotPresent || !slices.Contains(c.Env, threads) {
				t.Errorf("%s: %+v", name, c)
			}
		}
	}
	if containers != 2 {
		t.Errorf("%d containers", containers)
	}
	var claim corev1.PersistentVolumeClaim
	if err := yaml.UnmarshalStrict(docs["v1 PersistentVolumeClaim"], &claim); err != nil {
		t.Error(err)
	}
	// kind's storage class, the default, makes no other volumes.
	if modes := claim.Spec.AccessModes; claim.Spec.StorageClassName == nil && !slices.Equal(modes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}) {
		t.Errorf("the default storage class is to make a volume with %v", modes)
	}
	if err := yaml.UnmarshalStrict(docs["networking.k8s.io/v1 NetworkPolicy"], &networkingv1.NetworkPolicy{}); err != nil {
		t.Error(err)
	}
}

func TestCompose(t *testing.T) {
	o, err := cli.NewProjectOptions([]string{filepath.Join(dir, "compose.yaml")}, cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	p, err := o.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for name, s := range p.Services {
		rank := s.Environment["RANK"]
		if rank == nil || name != "rank"+*rank || *s.Environment["MASTER_ADDR"] != "rank0" || *s.Environment["WORLD_SIZE"] != "4" ||
			s.Environment["OMP_NUM_THREADS"] == nil {
			t.Errorf("service %s: %v", name, s.Environment)
			continue
		}
		seen[*rank] = true
		if s.Build == nil || s.StopGracePeriod == nil || s.NetworkMode != "" || len(s.Networks) != 1 {
			t.Errorf("service %s: %+v", name, s)
			continue
		}
		if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil {
			t.Error(err)
		}
	}
	if len(seen) != 4 {
		t.Errorf("ranks %v", seen)
	}
}
