# SPDX-License-Identifier: Apache-2.0
"""The paper's theorems, lemmas and bounds as functions.

Examples
--------
>>> theorem("fedaci:full").bound(L=1, mu=1, sigma=0, M=1, K=1, T=2, Psi0=1).total  # e^-2
0.1353352832366127
"""

from fedac.theory.theorems import THEOREMS, StepSize, Theorem, theorem

__all__ = ["THEOREMS", "StepSize", "Theorem", "theorem"]
