{{/*
The chart has no copy of the manifests: `files/` leads to the folders that kustomize builds, and the templates
change in them what the values say.

gpupack.objects writes every object of some files.
  root: the chart's top scope
  files: below files/, `*` allowed
  component: values of its workload (args, env, resources, ...), may be left out
  change: a template that changes each object in place first, given root and object; may be left out
*/}}
{{- define "gpupack.objects" }}
{{- $given := . }}
{{- range $path, $_ := .root.Files.Glob (printf "files/%s" .files) }}
{{- range $text := regexSplit "(?m)^---\\s*$" ($given.root.Files.Get $path) -1 }}
{{- $object := fromYaml (include "gpupack.place" (dict "root" $given.root "text" $text)) }}
{{- if not (has (default "" $object.kind) (list "" "Component" "KubeSchedulerConfiguration" "Kustomization")) }}
{{- with $given.change }}{{ $_ := include . (dict "root" $given.root "object" $object) }}{{ end }}
{{- include "gpupack.object" (dict "root" $given.root "object" $object "component" $given.component) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* gpupack.file is the text of one of the files, for the places of the release: root, path. */}}
{{- define "gpupack.file" }}
{{- include "gpupack.place" (dict "root" .root "text" (.root.Files.Get (printf "files/%s" .path))) }}
{{- end }}

{{/*
gpupack.place names the release's namespace and the kubelet's folder in a text. Kubernetes has the folder of device
plugins in /var/lib/kubelet whatever the kubelet's --root-dir is.
*/}}
{{- define "gpupack.place" }}
{{- $text := replace "gpupack-system" .root.Release.Namespace .text }}
{{- regexReplaceAll "/var/lib/kubelet/(pod-resources|plugins)" $text (printf "%s/${1}" .root.Values.node.kubeletDir) }}
{{- end }}

{{/* gpupack.object writes one object: root, object, component. */}}
{{- define "gpupack.object" }}
{{- $object := .object }}
{{- $isServed := true }}
{{- if has $object.kind (list "DaemonSet" "Deployment") }}
{{- include "gpupack.adapt" (dict "root" .root "object" $object "component" (default dict .component)) }}
{{- end }}
{{- if hasPrefix "MutatingAdmissionPolicy" $object.kind }}
{{- $version := include "gpupack.mutatingVersion" .root }}
{{- $isServed = ne $version "" }}
{{- $_ := set $object "apiVersion" (printf "admissionregistration.k8s.io/%s" $version) }}
{{- end }}
{{- if $isServed }}
{{- $_ := set $object.metadata "labels" (merge (include "gpupack.labels" .root | fromYaml) (default dict $object.metadata.labels)) }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}

{{/*
gpupack.isEnabled is true where a part is turned on by its own value, or is one of the components of the platform's:
root, part.
*/}}
{{- define "gpupack.isEnabled" }}
{{- $platform := fromYaml (.root.Files.Get (printf "files/%s/kustomization.yaml" .root.Values.platform)) }}
{{- if or (get .root.Values .part).enabled (has (printf "../%s" (kebabcase .part)) (default list $platform.components)) }}true{{ end }}
{{- end }}

{{/* gpupack.labels is what Helm's own conventions want on each object of a release, as YAML; `.` is the top scope. */}}
{{- define "gpupack.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/*
gpupack.mutatingVersion is the version of MutatingAdmissionPolicy that the cluster serves; empty where it serves none.
A cluster that answers names its kinds. `helm template` knows the version of Kubernetes alone.
*/}}
{{- define "gpupack.mutatingVersion" }}
{{- if semverCompare ">= 1.36-0" .Capabilities.KubeVersion.Version -}} v1
{{- else if or (eq .Values.schedulerName "v1beta1") (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy") -}} v1beta1
{{- end }}
{{- end }}

{{/* gpupack.adapt changes a workload in place; it writes nothing. */}}
{{- define "gpupack.adapt" }}
{{- $component := .component }}
{{- $template := .object.spec.template }}
{{- $pod := $template.spec }}
{{- $image := .root.Values.image }}
{{- with $image.pullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end }}
{{- if hasKey $component "replicas" }}{{ $_ := set .object.spec "replicas" $component.replicas }}{{ end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" }}
{{- if hasKey $component $key }}
{{- $value := get $component $key }}
{{- if $value }}{{ $_ := set $pod $key $value }}{{ else }}{{ $_ := unset $pod $key }}{{ end }}
{{- end }}
{{- end }}
{{- with $component.podAnnotations }}
{{- $_ := set $template.metadata "annotations" (merge (deepCopy .) (default dict $template.metadata.annotations)) }}
{{- end }}
{{- with $component.podLabels }}
{{- $_ := set $template.metadata "labels" (merge (deepCopy $template.metadata.labels) .) }}
{{- end }}
{{- $given := $component }}
{{- range $container := $pod.containers }}
{{- if eq $container.image "gpupack" }}
{{- $component := ternary $.root.Values.queue $given (eq $container.name "queue") }}
{{- $_ := set $container "image" (printf "%s:%s" $image.repository (default $.root.Chart.AppVersion $image.tag)) }}
{{- $_ := set $container "imagePullPolicy" $image.pullPolicy }}
{{- with $component.resources }}{{ $_ := set $container "resources" . }}{{ end }}
{{- with $component.env }}{{ $_ := set $container "env" (concat (default list $container.env) .) }}{{ end }}
{{- include "gpupack.arguments" (dict "container" $container "args" (default dict $component.args)) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
gpupack.arguments changes the command line in place: `args` are options of the command by name, without the
dashes. Those that are there change in their place, others follow. true is a bare option, false its --no-
form, null leaves it out.
*/}}
{{- define "gpupack.arguments" }}
{{- $left := deepCopy .args }}
{{- $args := list }}
{{- range $argument := .container.args }}
{{- $name := trimPrefix "--" (first (splitList "=" $argument)) }}
{{- if hasKey $left $name }}
{{- with include "gpupack.argument" (dict "name" $name "value" (get $left $name)) }}{{ $args = concat $args (splitList "\n" .) }}{{ end }}
{{- $_ := unset $left $name }}
{{- else }}
{{- $args = append $args $argument }}
{{- end }}
{{- end }}
{{- range $name := keys $left | sortAlpha }}
{{- with include "gpupack.argument" (dict "name" $name "value" (get $left $name)) }}{{ $args = concat $args (splitList "\n" .) }}{{ end }}
{{- end }}
{{- $_ := set .container "args" $args }}
{{- end }}

{{/* gpupack.argument writes one option, one line for each value of a list. */}}
{{- define "gpupack.argument" }}
{{- $name := .name }}
{{- if kindIs "slice" .value }}
{{- $lines := list }}
{{- range .value }}{{ $lines = append $lines (printf "--%s=%v" $name .) }}{{ end }}
{{- join "\n" $lines }}
{{- else if kindIs "bool" .value }}
{{- if .value }}--{{ $name }}{{ else }}--no-{{ $name }}{{ end }}
{{- else if kindIs "float64" .value }}
{{- if eq .value (floor .value) }}--{{ $name }}={{ int64 .value }}{{ else }}--{{ $name }}={{ .value }}{{ end }}
{{- else if not (kindIs "invalid" .value) }}--{{ $name }}={{ .value }}
{{- end }}
{{- end }}

{{/*
gpupack.selectLeader has Service and rights follow the values of lease-name and pod-name: where no pod is named
none has the leader's label, and readiness says who leads.
*/}}
{{- define "gpupack.selectLeader" }}
{{- $args := default dict .component.args }}
{{- $lease := get $args "lease-name" }}
{{- if eq .object.kind "Service" }}
{{- if and (hasKey $args "pod-name") (kindIs "invalid" (get $args "pod-name")) }}
{{- $_ := unset .object.spec.selector "gpupack.io/leader" }}
{{- else if $lease }}
{{- $_ := set .object.spec.selector "gpupack.io/leader" $lease }}
{{- end }}
{{- else if and $lease (eq .object.kind "Role") }}
{{- range $rule := .object.rules }}
{{- if and (hasKey $rule "resourceNames") (has "leases" $rule.resources) }}
{{- $_ := set $rule "resourceNames" (list $lease) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* gpupack.patch applies a JSON patch to an object in place; every step of it adds: to the end of a list, or a member. */}}
{{- define "gpupack.patch" }}
{{- $object := .object }}
{{- range $step := .steps }}
{{- $path := splitList "/" (trimPrefix "/" $step.path) }}
{{- if ne $step.op "add" }}{{ fail (printf "%s %s is not understood" $step.op $step.path) }}{{ end }}
{{- $member := last $path }}
{{- $value := $step.value }}
{{- $parents := initial $path }}
{{- if eq $member "-" }}
{{- $member = last $parents }}
{{- $parents = initial $parents }}
{{- end }}
{{- $place := $object }}
{{- range $part := $parents }}
{{- if kindIs "slice" $place }}{{ $place = index $place (int $part) }}{{ else }}{{ $place = get $place $part }}{{ end }}
{{- end }}
{{- if eq (last $path) "-" }}{{ $value = append (default list (get $place $member)) $value }}{{ end }}
{{- $_ := set $place $member $value }}
{{- end }}
{{- end }}
