# lit_agentrl in a container; docs/start.md says how to run it.
#   CPU:   docker build -t lit-agentrl .
#   CUDA:  docker build -t lit-agentrl:cuda --build-arg DEVICE=cuda .
FROM python:3.11.14-slim-bookworm

# cpu: PyTorch's CPU builds; cuda: the builds of the package index, which bring their CUDA libraries
ARG DEVICE=cpu
# as in the Makefile
ARG TORCH=2.13.0
# of pyproject.toml, with commas between, such as lora,data,wandb
ARG EXTRAS=lora,data,gguf,server
ARG CPU_INDEX=https://download.pytorch.org/whl/cpu

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

# a C compiler for the kernels that Triton makes at run time on a GPU
RUN case "$DEVICE" in cpu | cuda) ;; *) echo "DEVICE=$DEVICE must be cpu or cuda" >&2; exit 1 ;; esac \
    && if [ "$DEVICE" = cuda ]; then \
        apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; \
    fi

# torch by itself: it is the largest layer, and changes least
RUN if [ "$DEVICE" = cpu ]; then set -- --index-url "$CPU_INDEX"; fi && pip install "torch==$TORCH" "$@"

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
COPY conf ./conf
RUN pip install -c constraints.txt ".${EXTRAS:+[$EXTRAS]}" && rm -rf /src/*

# runs are written to /runs/outputs, by any user (docker run --user)
RUN useradd --create-home --uid 1000 agent && mkdir -p /runs && chmod 1777 /runs
ENV HOME=/runs USER=agent
WORKDIR /runs
USER agent
ENTRYPOINT ["lit-agentrl"]
CMD ["--help"]
