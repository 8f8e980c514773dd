# SPDX-License-Identifier: Apache-2.0
"""Memories: vectors that a client keeps between its rounds."""
