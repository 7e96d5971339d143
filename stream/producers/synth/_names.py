"""The names in a made-up capture: kernels as compilers mangle them, CUDA calls, threads."""

from __future__ import annotations

from typing import Final

EAGER: Final = (
    (
        "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::"
        "gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::"
        "[lambda() (instance 3)]::operator ()() const::[lambda() (instance 7)]::operator ()() const::"
        "[lambda(float) (instance 1)]>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance "
        "1)]>(int, T3)"
    ),
    (
        "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, "
        "(bool)0, (bool)1, (cudnnKernelDataType_t)0>(cudnn::engines_precompiled::"
        "nchw2nhwc_params_t<T3>, const T1 *, T2 *)"
    ),
    (
        "void at::native::elementwise_kernel<(int)128, (int)4, void at::native::"
        "gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<c10::BFloat16>>(at::TensorIteratorBase "
        "&, const T1 &)::[lambda(int) (instance 1)]>(int, T3)"
    ),
    (
        "void at::native::vectorized_elementwise_kernel<(int)8, at::native::"
        "bfloat16_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda(float) (instance 1)], std::"
        "array<char *, (unsigned long)2>>(int, T2, T3)"
    ),
    (
        "void cudnn::engines_precompiled::nhwcToNchwKernel<__nv_bfloat16, __nv_bfloat16, float, "
        "(bool)1, (bool)0, (cudnnKernelDataType_t)0>(cudnn::engines_precompiled::"
        "nhwc2nchw_params_t<T3>, const T1 *, T2 *)"
    ),
    (
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::AUnaryFunctor<float, "
        "float, float, at::native::binary_internal::MulFunctor<float>>, std::array<char *, (unsigned "
        "long)2>>(int, T2, T3)"
    ),
    (
        "void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl<at::"
        "native::BinaryFunctor<float, float, float, at::native::binary_internal::"
        "MulFunctor<float>>>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, "
        "T3)"
    ),
    (
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, std::"
        "array<char *, (unsigned long)1>>(int, T2, T3)"
    ),
    (
        "void at::native::reduce_kernel<(int)128, (int)4, at::native::ReduceOp<c10::BFloat16, at::"
        "native::NormTwoOps<c10::BFloat16, float, float, (bool)1>, unsigned int, float, (int)4, "
        "(int)4>>(T3)"
    ),
    (
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::<unnamed>::"
        "launch_clamp_scalar(at::TensorIteratorBase &, c10::Scalar, c10::Scalar, at::native::detail::"
        "ClampLimits)::[lambda() (instance 1)]::operator ()() const::[lambda() (instance 7)]::"
        "operator ()() const::[lambda(float) (instance 1)], std::array<char *, (unsigned "
        "long)2>>(int, T2, T3)"
    ),
    (
        "void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl<at::"
        "native::BinaryFunctor<float, float, float, at::native::binary_internal::"
        "DivFunctor<float>>>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, "
        "T3)"
    ),
    (
        "void at::native::<unnamed>::CatArrayBatchedCopy<at::native::<unnamed>::OpaqueType<(unsigned "
        "int)2>, unsigned int, (int)4, (int)64, (int)64>(T1 *, at::native::<unnamed>::"
        "CatArrInputTensorMetadata<T1, T2, T4, T5>, at::native::<unnamed>::TensorSizeStride<T2, "
        "(unsigned int)4>, int, T2)"
    ),
    (
        "void at::native::<unnamed>::upsample_nearest3d_out_frame<c10::BFloat16>(const T1 *, "
        "unsigned long, ...)"
    ),
    (
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::<unnamed>::"
        "silu_kernel(at::TensorIteratorBase &)::[lambda() (instance 1)], std::array<char *, "
        "(unsigned long)2>>(int, T2, T3)"
    ),
    (
        "void at::native::<unnamed>::RowwiseMomentsCUDAKernel<c10::BFloat16, float, (int)512>(long, "
        "T2, const T1 *, T2 *, T2 *)"
    ),
    (
        "void implicit_convolve_sgemm<__nv_bfloat16, __nv_bfloat16, (int)1024, (int)5, (int)5, "
        "(int)3, (int)3, (int)3, (int)1, (bool)1, (bool)0, (bool)1>(int, int, int, const T1 *, int, "
        "T2 *, const T1 *, kernel_conv_params, unsigned long long, int, float, float, int, const T2 "
        "*, const T2 *, bool, int, int)"
    ),
    (
        "sm90_xmma_fprop_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_"
        "stage3_warpgroupsize1x1x1_g1_tensor64x16x16_simple_t1r3s3_execute_kernel__5x_cudnn"
    ),
    (
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>("
        "T1::Params)"
    ),
    (
        "void at::native::<unnamed>::distribution_elementwise_grid_stride_kernel<float, (int)4, "
        "...>(long, at::PhiloxCudaState, T3, T4)"
    ),
    "void at::native::index_elementwise_kernel<(int)128, (int)4, ...>(long, T3)",
)
"""What frameworks launch one by one; the first ones are also those seen without context."""

UNKNOWN: Final = 16
"""The first so many of EAGER run without context as well."""

_TILES = ("128x256_64x4_1x2_h_bz_coopA_NNT", "256x128_64x4_2x1_v_bz_TNT", "64x8_64x16_4x1_v_bz_splitK_TNT")

GRAPH: Final = (
    *(f"nvjet_tst_{tile}" for tile in _TILES),
    (
        "void flash::flash_fwd_kernel<flash::FwdKernelTraitsSm90<(int)128, (int)128, (int)176, "
        "(int)12, (int)2, (bool)0, (int)1, cutlass::bfloat16_t>, (bool)0, (bool)0>(T1::Params)"
    ),
    "void rms_norm_kernel<c10::BFloat16, (int)8>(T1 *, const T1 *, const T1 *, float, int)",
    "void rotary_embedding_3d<c10::BFloat16, (bool)1>(T1 *, const float *, const float *, int, int, int)",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    *(
        f"triton_{kind}_fused_{ops}_{i}"
        for i, (kind, ops) in enumerate(
            (kind, ops)
            for kind in ("poi", "red", "per")
            for ops in (
                "_to_copy_add_mul",
                "_to_copy_native_layer_norm",
                "add_cat_gelu_view",
                "mul_silu_split",
                "_unsafe_view_clone_transpose",
                "add_mul_unsqueeze",
            )
        )
    ),
)
"""What a compiled model's graphs replay."""

KERNELS: Final = (*EAGER, *GRAPH)

LAUNCH_KERNEL: Final = "cudaLaunchKernel_v7000"
LAUNCH_KERNEL_EX: Final = "cudaLaunchKernelExC_v11060"
LAUNCH_DRIVER: Final = "cuLaunchKernelEx"
LAUNCH_GRAPH: Final = "cudaGraphLaunch_v10000"
MEMCPY_ASYNC: Final = "cudaMemcpyAsync_v3020"
MEMSET_ASYNC: Final = "cudaMemsetAsync_v3020"
WITHOUT_WORK: Final = (
    "cudaEventRecord_v3020",
    "cudaEventQuery_v3020",
    "cudaStreamSynchronize_v3020",
    "cudaStreamIsCapturing_v10000",
    "cudaStreamWaitEvent_v3020",
    "cudaMalloc_v3020",
)
BACKTRACE: Final = "CUDA backtrace"
GRAPH_NODE: Final = "CUDA graph node creation"
CALLS: Final = (
    LAUNCH_KERNEL,
    LAUNCH_KERNEL_EX,
    LAUNCH_DRIVER,
    LAUNCH_GRAPH,
    MEMCPY_ASYNC,
    MEMSET_ASYNC,
    *WITHOUT_WORK,
    BACKTRACE,
    GRAPH_NODE,
)


def short_name(name: str) -> str:
    """Return a kernel's base name, as Nsight Systems writes it beside the full one."""
    base = name.split("(", 1)[0].split("<", 1)[0].removeprefix("void ")
    return base.rsplit("::", 1)[-1].strip() or name


def mangled_name(name: str) -> str:
    """Return something of the look and length of the kernel's mangled name."""
    if name.isidentifier():
        return name
    return "_Z" + "".join(f"{len(part)}{part}" for part in name.replace(" ", "").split("::"))
