# One image for worker, beat and Flower: the library, Celery's Redis extra, and the example app.
# Put your own app in its place with a Dockerfile of yours that begins with this image.

FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY tasks tasks
COPY beat beat
RUN pip install --no-cache-dir --root-user-action=ignore "setuptools>=77" \
 && pip wheel --no-cache-dir --no-build-isolation --wheel-dir /wheels ".[redis]"

FROM python:3.11-slim
RUN useradd --uid 1000 --create-home commander \
 && install --directory --owner=commander --mode=0700 /var/lib/commander
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --root-user-action=ignore --no-index --find-links /wheels \
        "celery-commander[redis]" \
 && rm -r /wheels
COPY --chown=commander examples/service.py /app/examples/service.py
WORKDIR /app
USER commander
ENV PYTHONUNBUFFERED=1 \
    COMMANDER_STATE_DIRECTORY=/var/lib/commander/state
# The log lives here; a container without a volume loses it with its next version.
VOLUME /var/lib/commander
CMD ["celery", "--app", "examples.service", "worker", "--loglevel", "INFO"]
