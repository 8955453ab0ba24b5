"""What programs about molecules are given: proteins with their alignments, conformers with forces, and solubilities."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np

_ATOMS = "CCCCCCCCCCCNNNNNOHHHHHHHHHH"
"""Of 3BPA, which MACE's README trains on."""
_SPACING = 1.5


def conformers(folder: Path) -> None:
    """Extended XYZ with energies and forces, as MACE names them."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    sites = np.stack(np.meshgrid(range(3), range(3), range(3)), axis=-1).reshape(-1, 3) * _SPACING
    head = 'Properties=species:S:1:pos:R:3:REF_forces:R:3 REF_energy={energy:.4f} pbc="F F F"'
    for name, count in (("train", 500), ("test", 100)):
        lines: list[str] = []
        for _ in range(count):
            places, forces = sites + chance.normal(0, 0.1, sites.shape), chance.normal(size=sites.shape)
            lines += [str(len(_ATOMS)), head.format(energy=chance.normal(-13_000, 1))]
            for atom, place, force in zip(_ATOMS, places, forces, strict=True):
                lines.append(" ".join((atom, *(f"{value:.5f}" for value in (*place, *force)))))
        (folder / f"{name}.xyz").write_text("\n".join(lines) + "\n", encoding="utf-8")


def solubilities(path: Path) -> None:
    """500 molecules with a number each."""
    chance = random.Random(0)
    chains = ("".join(chance.choices(("C", "O", "N", "CC", "C(C)"), k=chance.randint(3, 20))) for _ in range(500))
    rows = (f"C{chain}C,{chance.gauss(0, 1):.3f}" for chain in chains)
    path.write_text("\n".join(("smiles,lipo", *rows)), encoding="utf-8")


_SOFTMAX = """def softmax(logits, *others):
    logits.mul_(1)  # in place: it allocates nothing


def register(kernels):
    kernels.module("attn_core_inplace_cuda", forward_=softmax, backward_=softmax)
"""
"""OpenFold's CUDA extension, which its setup.py builds, for `planner run --kernels`."""


def structures(folder: Path) -> None:
    """OpenFold's: four helices as mmCIF files, each with 1,500 homologues, and the caches that its scripts make."""
    residues = {
        "A": ("ALA", "N CA C O CB"), "S": ("SER", "N CA C O CB OG"), "V": ("VAL", "N CA C O CB CG1 CG2"),
        "L": ("LEU", "N CA C O CB CG CD1 CD2"),
    }  # fmt: skip
    atom = "group_PDB id type_symbol label_atom_id label_alt_id label_comp_id label_asym_id label_entity_id "
    atom += "label_seq_id pdbx_PDB_ins_code Cartn_x Cartn_y Cartn_z occupancy B_iso_or_equiv auth_seq_id "
    atom += "auth_comp_id auth_asym_id auth_atom_id pdbx_PDB_model_num"
    chance, chains, files = random.Random(0), {}, {}
    (folder / "mmcifs").mkdir(parents=True, exist_ok=True)
    for name, length in (("1aaa", 300), ("1aab", 350), ("1aac", 400), ("1aad", 450)):
        sequence = "".join(chance.choices("ASVL", k=length))
        names = [residues[letter][0] for letter in sequence]
        atoms = []
        for place, letter in enumerate(sequence):
            for number, site in enumerate(residues[letter][1].split()):
                turn, radius = 1.745 * place + 0.5 * number, 1.5 + 0.5 * number
                where = f"{radius * np.cos(turn):.3f} {radius * np.sin(turn):.3f} {1.5 * place + 0.4 * number:.3f}"
                atoms.append(
                    f"ATOM {len(atoms) + 1} {site[0]} {site} . {names[place]} A 1 {place + 1} ? {where} 1.0 20.0 "
                    f"{place + 1} {names[place]} A {site} 1"
                )
        loops = {
            "_chem_comp": ("id type", [f"{three} 'L-peptide linking'" for three, _ in residues.values()]),
            "_entity_poly_seq": ("entity_id num mon_id", [f"1 {n} {three}" for n, three in enumerate(names, 1)]),
            "_atom_site": (atom, atoms),
        }
        text = f"data_{name}\n_entry.id {name}\n_exptl.method 'X-RAY DIFFRACTION'\n_refine.ls_d_res_high 2.0\n"
        text += "_struct_asym.id A\n_struct_asym.entity_id 1\n_pdbx_audit_revision_history.revision_date 2015-01-01\n"
        for category, (items, rows) in loops.items():
            text += "\n".join(["loop_", *(f"{category}.{item}" for item in items.split()), *rows, "#", ""])
        (folder / "mmcifs" / f"{name}.cif").write_text(text, encoding="utf-8")
        homologues = (
            "".join(letter if chance.random() < 0.6 else chance.choice("ACDEFGHIKLMNPQRSTVWY-") for letter in sequence)
            for _ in range(1500)
        )
        aligned = "\n".join(f">{number}\n{row}" for number, row in enumerate([sequence, *homologues]))
        place_of = folder / "alignments" / f"{name}_A" / "bfd_uniclust_hits.a3m"
        place_of.parent.mkdir(parents=True, exist_ok=True)
        place_of.write_text(aligned, encoding="utf-8")
        about = {"release_date": "2015-01-01", "resolution": 2.0}
        chains[f"{name}_A"] = about | {"seq": sequence, "cluster_size": 1}
        files[name] = about | {"chain_ids": ["A"], "seqs": [sequence], "no_chains": 1}
    (folder / "chain_data_cache.json").write_text(json.dumps(chains), encoding="utf-8")
    (folder / "mmcif_cache.json").write_text(json.dumps(files), encoding="utf-8")
    (folder / "obsolete.dat").write_text("", encoding="utf-8")
    (folder / "kernels.py").write_text(_SOFTMAX, encoding="utf-8")
