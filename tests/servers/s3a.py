"""The jars with which Spark reads `s3a://`. `python -m tests.servers.s3a` (`make s3a`) fetches them once with Maven.

hadoop-aws must be of the version of the Hadoop that pyspark brings, and its AWS library is large (650 MB). Maven keeps
both in its own repository, outside of the tree; they are used from there.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from tests.servers.minio import CACHE

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>weir</groupId><artifactId>s3a</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.hadoop</groupId><artifactId>hadoop-aws</artifactId><version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


def hadoop_version() -> str:
    """Returns the version of the Hadoop in this pyspark."""
    jars = Path(pyspark.__file__).parent / "jars"
    (api,) = jars.glob("hadoop-client-api-*.jar")
    found = re.fullmatch(r"hadoop-client-api-(.+)\.jar", api.name)
    assert found is not None
    return found[1]


def class_path() -> str:
    """Returns the class path of the jars: as it was found once, or as Maven finds it now (a minute, and a download)."""
    version = hadoop_version()
    known = CACHE / f"hadoop-aws-{version}.classpath"
    if not known.exists() or not all(Path(jar).exists() for jar in known.read_text().split(":")):
        print(f"fetching hadoop-aws {version} with Maven, once: 650 MB", file=sys.stderr)
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            Path(work, "pom.xml").write_text(_POM.format(version=version))
            command = ["mvn", "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={work}/classpath"]
            subprocess.run(command, cwd=work, check=True)
            Path(work, "classpath").replace(known)
    return known.read_text().strip()


if __name__ == "__main__":
    print(class_path())
