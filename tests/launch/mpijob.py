"""A JSON schema of MPIJobs, and the rules by which mpi-operator refuses more than a schema can
express.

Fields, types and values are from kubeflow.org/v2beta1 (mpi-operator's types.go and the
CustomResourceDefinition made from it); required fields, smallest numbers and names of pods are from
its validation.go. An unknown field, which Kubernetes would drop silently, is an error here.
"""

import re


def _object(required=(), **properties):
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _one_of(*values):
    return {"type": "string", "enum": list(values)}


def _integer(least=0, **more):
    return {"type": "integer", "minimum": least, **more}


_TEXT, _YES_OR_NO = {"type": "string"}, {"type": "boolean"}
_REQUIRED = ("replicas", "restartPolicy", "template")


def _replica(replicas):
    return _object(
        _REQUIRED,
        replicas=replicas,
        restartPolicy=_one_of("Never", "OnFailure"),
        # Kubernetes' own schema checks the template.
        template={"type": "object", "required": ["spec"]},
    )


_RUN_POLICY = _object(
    ["cleanPodPolicy"],
    cleanPodPolicy=_one_of("None", "Running", "All"),
    ttlSecondsAfterFinished=_integer(),
    activeDeadlineSeconds=_integer(),
    backoffLimit=_integer(),
    suspend=_YES_OR_NO,
    managedBy=_one_of("kubeflow.org/mpi-operator", "kueue.x-k8s.io/multikueue"),
    schedulingPolicy=_object(
        minAvailable=_integer(),
        queue=_TEXT,
        minResources={"type": "object"},
        priorityClass=_TEXT,
        scheduleTimeoutSeconds=_integer(),
    ),
)
SCHEMA = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion=_one_of("kubeflow.org/v2beta1"),
    kind=_one_of("MPIJob"),
    metadata={"type": "object", "required": ["name"]},
    spec=_object(
        ["mpiReplicaSpecs"],
        slotsPerWorker=_integer(),
        runLauncherAsWorker=_YES_OR_NO,
        runPolicy=_RUN_POLICY,
        sshAuthMountPath=_TEXT,
        launcherCreationPolicy=_one_of("AtStartup", "WaitForWorkersReady"),
        mpiImplementation=_one_of("OpenMPI", "Intel", "MPICH"),
        mpiReplicaSpecs=_object(
            ["Launcher"],
            Launcher=_replica(_integer(1, maximum=1)),
            Worker=_replica(_integer(1)),
        ),
    ),
)


def has_valid_names(manifest: dict) -> bool:
    """Returns whether the longest name of a pod, which is also the name of a service, is a DNS
    label."""
    worker = manifest["spec"]["mpiReplicaSpecs"].get("Worker", {})
    name = f"{manifest['metadata']['name']}-worker-{worker.get('replicas', 1) - 1}"
    return bool(re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)) and len(name) <= 63
